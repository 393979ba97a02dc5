"""Energon's video decoder: a range without frames or samples yields no clip, where this package's raises."""

from __future__ import annotations

import copy
from typing import Any

from energon_dali.av import decoder as av_decoder
from energon_dali.decode.interface import Decoder
from energon_dali.decode.media_decoder import MediaDecoder


class _AnyAVDecoder(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, av_decoder.AVDecoder)  # also those that datasets make


class AVDecoder(av_decoder.AVDecoder, metaclass=_AnyAVDecoder):
    """A video or audio file. A range entirely outside of it yields no clip.

    Args:
        stream: The file.
        suppress_warnings: Has no effect.
        **options: Options of `energon_dali.AVDecoder`.

    Raises:
        ConfigError: An option is invalid.
    """

    def __init__(self, stream: Any, suppress_warnings: bool = False, **options: Any) -> None:
        super().__init__(stream, suppress_warnings, **{"missing": "drop", **options})


def with_energons_clips(decoder: Decoder | None) -> Decoder | None:
    """Returns a decoder whose AVDecoders leave out clips as in Energon, unless its options say otherwise.

    Args:
        decoder: The decoder of a task encoder; it is not changed.
    """
    if not isinstance(decoder, MediaDecoder) or decoder.av_decode != "AVDecoder" or "missing" in decoder.av_options:
        return decoder
    twin = copy.copy(decoder)
    twin.av_options = {**decoder.av_options, "missing": "drop"}
    return twin
