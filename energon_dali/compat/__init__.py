"""Runs programs that were written for Megatron Energon: `megatron.energon` resolves to this package.

Make it the first line of the program, or start the program with it:

    import energon_dali.compat

    python -m energon_dali.compat train.py --arguments of the program
    torchrun --nproc-per-node 8 -m energon_dali.compat train.py

Importing this package installs the names. Worker processes import it as well, before they unpickle what they run.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

from energon_dali.compat.finder import install_finder
from energon_dali.errors import ConfigError
from energon_dali.loader.processes.launch import import_in_children

__all__ = ["install"]

DecoderChoice = Literal["sample", "dali"]
"""Which decoder stands in for Energon's SampleDecoder."""

DECODER_VARIABLE = "ENERGON_DALI_COMPAT_DECODER"
TRUST_VARIABLE = "ENERGON_DALI_COMPAT_TRUST"


def install(*, decoder: DecoderChoice | None = None, trust_datasets: bool | None = None) -> None:
    """Makes every module path and name of Energon 7.4.1 resolve to this package. `import energon_dali.compat` calls it.

    Args:
        decoder: "dali" replaces the SampleDecoders of the program by DaliDecoders with the same options, where their
            results are tensors. "sample" leaves them. None leaves what `ENERGON_DALI_COMPAT_DECODER` says.
        trust_datasets: Lets datasets name code and run code, as Energon does: `allow_imports` and `allow_code` of
            `get_train_dataset` are True then. None leaves what `ENERGON_DALI_COMPAT_TRUST` says.

    Raises:
        ConfigError: `decoder` is unknown, or Energon itself was imported before.
    """
    if decoder is not None:
        os.environ[DECODER_VARIABLE] = _check_decoder(decoder)
    if trust_datasets is not None:
        os.environ[TRUST_VARIABLE] = str(int(trust_datasets))
    chosen_decoder()
    install_finder()
    import_in_children("energon_dali.compat")


def chosen_decoder() -> DecoderChoice:
    """Returns which decoder stands in for SampleDecoder.

    Raises:
        ConfigError: The environment variable has an unknown value.
    """
    return _check_decoder(os.environ.get(DECODER_VARIABLE) or "sample")


def trusts_datasets() -> bool:
    """Returns whether datasets may name code and run code."""
    return os.environ.get(TRUST_VARIABLE, "0") not in ("", "0")


def _check_decoder(name: str) -> DecoderChoice:
    for known in get_args(DecoderChoice):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"decoder={name!r} is unknown (argument, --decoder, or {DECODER_VARIABLE}): give "
        f"{' or '.join(map(repr, get_args(DecoderChoice)))}."
    )


install()
