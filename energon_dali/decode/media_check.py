"""Decodes video and audio to the end, which a loader opens only when a hook asks for frames."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from energon_dali.samples.transfer import attributes_of


def check_media(value: Any) -> None:
    """Decodes the whole of every video and audio file in a sample, and keeps nothing.

    Args:
        value: A sample, or a part of one: dataclasses, dicts, lists and tuples are searched for `AVDecoder`.

    Raises:
        DecodeError: A file cannot be opened, or part of it cannot be decoded.
    """
    from energon_dali.av import AVDecoder

    if isinstance(value, AVDecoder):
        # Closed at once: otherwise the decoders of a whole block would hold their frames at the same time.
        with value:
            if value.has_video_stream():
                value.video.check()
            if value.has_audio_stream():
                value.audio.check()
    elif isinstance(value, dict):
        for inner in value.values():
            check_media(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            check_media(inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for inner in attributes_of(value).values():
            check_media(inner)
