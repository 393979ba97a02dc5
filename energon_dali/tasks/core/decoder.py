"""The decoder of a task: which backend, chosen by the run; in which form images come, chosen by the task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from energon_dali.decode import DaliDecoder, Decoder, MediaDecoder, SampleDecoder
from energon_dali.decode.media_decoder import options_of
from energon_dali.errors import ConfigError

DecoderChoice = str | Decoder | Callable[..., Decoder] | None
"""A name of `DECODERS`, a decoder, or what makes one of keyword options: a class, or a `functools.partial` of one."""

DECODERS: dict[str, Callable[..., MediaDecoder]] = {
    "dali": DaliDecoder,
    "dali_cpu": partial(DaliDecoder, image_decode_device="cpu", video_decode_device="cpu"),
    "dali_gpu": partial(DaliDecoder, image_decode_device="gpu", video_decode_device="gpu"),
    "pil": SampleDecoder,
}
"""The backends by name: "dali" takes a GPU where there is one."""


def make_decoder(choice: DecoderChoice = None, **options: Any) -> Decoder:
    """Returns the decoder of a task encoder.

    Args:
        choice: The backend; None is DaliDecoder(). A decoder that was made already keeps all that `options` leave open.
        **options: What the task needs of images: `image_decode`, `operations` and the other options of
            `MediaDecoder`. They win over those of the choice.

    Raises:
        ConfigError: The choice makes no decoder, or an option cannot work.
    """
    if isinstance(choice, str):
        if choice not in DECODERS:
            raise ConfigError(f"decoder={choice!r} is unknown. Choose one of {', '.join(DECODERS)}, or give a decoder.")
        choice = DECODERS[choice]
    if isinstance(choice, MediaDecoder):
        return type(choice)(**{**options_of(choice), **options}) if options else choice
    if isinstance(choice, Decoder):
        if options:
            raise ConfigError(
                f"A {type(choice).__name__} does not take {', '.join(options)}, which this task needs of its images. "
                "Give what makes the decoder, such as its class, and not the decoder itself."
            )
        return choice
    if choice is not None and not callable(choice):
        raise ConfigError(
            f"decoder={choice!r} makes no decoder. Give one of the names {', '.join(DECODERS)}, a decoder, or its "
            "class; in a config, _target_ with _partial_: true."
        )
    decoder = (choice or DaliDecoder)(**options)
    if not isinstance(decoder, Decoder):
        raise ConfigError(f"{choice!r} made a {type(decoder).__name__}, which is not a decoder of energon_dali.")
    return decoder
