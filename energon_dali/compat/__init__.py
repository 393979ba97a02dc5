"""Runs programs that were written for Megatron Energon: `megatron.energon` resolves to this package.

Make it the first line of the program, or start the program with it:

    import energon_dali.compat

    python -m energon_dali.compat train.py --arguments of the program
    torchrun --nproc-per-node 8 -m energon_dali.compat train.py

Importing this package installs the names. Worker processes import it as well, before they unpickle what they run.
"""

from __future__ import annotations

from energon_dali.compat.install import install

__all__ = ["install"]

install()
