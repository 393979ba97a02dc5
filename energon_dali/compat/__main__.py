"""`python -m energon_dali.compat PROGRAM ...` runs a program that imports `megatron.energon`, on this package."""

from __future__ import annotations

import sys

from energon_dali.compat.run import execute, start

if __name__ == "__main__":
    execute(globals(), *start(sys.argv[1:]))
