"""The frames of a video as plain PyAV decodes them, every packet in one thread: the reference for readers."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import av
import numpy as np

from tests.av.corpus import video_file

Pictures = np.ndarray[Any, np.dtype[np.uint8]]

UNTAGGED_HD = ("colour-h264-untagged-hd",)
"""Videos that PyAV treats as BT.601 and this package as BT.709."""
GUESSED_TIMES = ("h264-b-avi", "h264-edit-two-mp4")
"""Videos whose frames come in the right order from FFmpeg, with times that contradict it."""


@dataclass(frozen=True)
class FullDecode:
    """The result of decoding a whole video."""

    pictures: Pictures
    """RGB [frames, height, width, 3]."""
    pts: list[int]
    durations: list[int]
    time_base: Any


def decode_fully(data: bytes, size: tuple[int, int] | None = None, **conversion: Any) -> FullDecode:
    """Returns all frames of a video, converted by PyAV's own reformat."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        frames = list(container.decode(stream))
        width, height = size or (stream.width, stream.height)
        pictures = [
            frame.reformat(width, height, "rgb24", interpolation="BILINEAR", **conversion).to_ndarray()
            for frame in frames
        ]
        return FullDecode(
            np.stack(pictures), [frame.pts for frame in frames], [frame.duration for frame in frames], stream.time_base
        )


@cache
def decoded(name: str) -> FullDecode:
    """Returns all frames of a video of the corpus."""
    return decode_fully(video_file(name), **({"src_colorspace": 1} if name in UNTAGGED_HD else {}))
