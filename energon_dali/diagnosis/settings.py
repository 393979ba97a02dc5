"""What `bench` and `tune` vary: workers, prefetch and decoder of a loader, with the order of samples fixed."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from energon_dali.decode import DaliDecoder, Decoder, SampleDecoder
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder, options_of
from energon_dali.errors import ConfigError
from energon_dali.worker_config import AUTO_STREAMS_PER_RANK

DecoderName = Literal["own", "pil", "dali-cpu", "dali-gpu"]
DECODERS: tuple[DecoderName, ...] = get_args(DecoderName)
STREAMS_PER_RANK = AUTO_STREAMS_PER_RANK
"""Streams that are fixed where nothing else fixes them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a loader."""

    num_workers: int
    """Worker processes; 0 runs everything in the trainer's process."""
    prefetch_factor: int = 2
    """The argument of `get_loader`."""
    decoder: DecoderName = "own"
    """The encoder's own decoder; or SampleDecoder ("pil") or DaliDecoder on the named device, with its options."""

    def __str__(self) -> str:
        workers = "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"
        return f"{self.decoder}, {workers}, prefetch_factor={self.prefetch_factor}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the setting as plain values."""
        return asdict(self)


def with_decoder(encoder: Any, name: DecoderName) -> Any:
    """Returns a copy of a task encoder with another decoder of the same options; the encoder itself for "own".

    Raises:
        ConfigError: The name is unknown, or the encoder's decoder is of the user's own kind.
    """
    if name not in DECODERS:
        raise ConfigError(f"The decoder {name!r} is unknown: give one of {', '.join(DECODERS)}.")
    if name == "own":
        return encoder
    twin = copy.copy(encoder)
    twin.decoder = _decoder(encoder.decoder, name)
    return twin


def _decoder(own: Decoder | None, name: DecoderName) -> Decoder:
    if type(own) not in (SampleDecoder, DaliDecoder):
        raise ConfigError(
            f"The encoder's decoder is {own!r}, which cannot be exchanged for {name!r}: only SampleDecoder and "
            'DaliDecoder have the same options. Use "own".'
        )
    assert isinstance(own, MediaDecoder)
    options = options_of(own)
    if name == "pil":
        return SampleDecoder(**{option: options[option] for option in DecoderOptions.__annotations__})
    device = name.removeprefix("dali-")
    return DaliDecoder(**{**options, "image_decode_device": device, "video_decode_device": device})


def usable_decoders(own: Decoder | None) -> list[DecoderName]:
    """Returns the decoders that can take the place of an encoder's own on this machine, with "own" first."""
    found: list[DecoderName] = ["own"]
    if type(own) not in (SampleDecoder, DaliDecoder):
        return found
    if type(own) is DaliDecoder:
        found.append("pil")
    if DaliDecoder.available():
        found.append("dali-cpu")
        import torch

        if torch.cuda.is_available():
            found.append("dali-gpu")
    return found
