"""Energon's video decoder, whose ranges without frames or samples yield no clip, where this package's raise.

With it are the decoded video of older versions of Energon, and its wrapper of decoders.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from energon_dali.av import AVData
from energon_dali.av import decoder as av_decoder
from energon_dali.decode.interface import Decoder
from energon_dali.decode.media_decoder import MediaDecoder
from energon_dali.decode.part_kind import guess_part_kind, require_filetype


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


@dataclass
class VideoData:
    """A decoded video; versions before 6 delivered it for video parts, later ones deliver AVData or AVDecoder."""

    frames: torch.Tensor
    """uint8 [frames, channels, height, width]."""
    aframes: torch.Tensor | None = None
    """Audio [channels, samples]; None without audio."""
    info: dict[str, Any] = field(default_factory=dict)
    """Facts such as `video_fps` and `audio_fps`."""

    @classmethod
    def from_av_data(cls, data: AVData) -> VideoData:
        """Returns the clips of a decoded file joined: frames one after the other, and the audio likewise.

        Args:
            data: What `av_decode="torch"` or `AVDecoder.get_clips` returns.
        """
        info: dict[str, Any] = {}
        frames = torch.cat(data.video_clips) if data.video_clips else torch.empty((0, 3, 0, 0), dtype=torch.uint8)
        for name, clips, ranges, axis in (
            ("video_fps", data.video_clips, data.video_timestamps, 0),
            ("audio_fps", data.audio_clips, data.audio_timestamps, 1),
        ):
            seconds = sum(end - begin for begin, end in ranges or ())
            if clips and seconds > 0:
                info[name] = sum(clip.shape[axis] for clip in clips) / seconds
        return cls(frames, torch.cat(data.audio_clips, dim=1) if data.audio_clips else None, info)


class GuessingHandlerWrapper:
    """Gives a handler the suffix that the content of a part has, instead of its name.

    Args:
        handler: Function of (suffix, content).
    """

    def __init__(self, handler: Callable[[str, bytes], Any]) -> None:
        require_filetype()
        self.handler = handler

    def __call__(self, key: str, data: bytes) -> Any:
        kind = guess_part_kind(data, ("basic", key))
        return self.handler(kind[1] or key, data)

    @staticmethod
    def wrap(active: bool, handlers: list[Callable[[str, bytes], Any]]) -> list[Callable[[str, bytes], Any]]:
        """Returns the handlers, wrapped if `active`."""
        return [GuessingHandlerWrapper(handler) for handler in handlers] if active else handlers
