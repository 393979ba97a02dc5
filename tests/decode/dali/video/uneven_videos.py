"""Videos whose frames differ from what their container declares: files that DALI must never get."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np

Shape = tuple[int, int, str]
"""Width, height, pixel format."""

FULL, SMALL, LARGE = (320, 240, "yuv420p"), (160, 128, "yuv420p"), (640, 480, "yuv420p")
UNEVEN: dict[str, tuple[str, str, Shape, list[Shape]]] = {
    f"{codec}-{name}": (codec, box, declared, shapes)
    for codec, box in (("libvpx", "webm"), ("libvpx-vp9", "mp4"), ("libvpx-vp9", "webm"), ("mjpeg", "mkv"))
    for name, declared, shapes in (
        ("shrinks", FULL, [FULL, SMALL]),
        ("grows", FULL, [FULL, LARGE]),
        ("declared-large", LARGE, [SMALL]),
        ("declared-small", SMALL, [LARGE]),
    )
} | {
    "vp9-444-to-420": ("libvpx-vp9", "webm", (320, 240, "yuv444p"), [(320, 240, "yuv444p"), FULL]),
    "vp9-420-to-444": ("libvpx-vp9", "webm", FULL, [FULL, (320, 240, "yuv444p")]),
    "mjpeg-444-to-420": ("mjpeg", "mkv", (320, 240, "yuvj444p"), [(320, 240, "yuvj444p"), (320, 240, "yuvj420p")]),
    "libx264-shrinks": ("libx264", "mkv", FULL, [FULL, SMALL]),
    "mpeg4-shrinks": ("mpeg4", "mkv", FULL, [FULL, SMALL]),
}
"""Encoder, container, what the container declares, and what the frames are; a few of each."""


def uneven_video(name: str) -> bytes:
    """Returns one of UNEVEN as a file: the packets of several encoders in one stream."""
    encoder, box, declared, shapes = UNEVEN[name]
    stream, number = io.BytesIO(), 0
    with av.open(stream, "w", format={"mkv": "matroska"}.get(box, box)) as container:
        video: Any = container.add_stream(encoder, rate=25, options=_options(encoder))
        _set_shape(video, encoder, declared)
        container.start_encoding()
        for shape in shapes:
            context: Any = av.CodecContext.create(encoder, "w")
            _set_shape(context, encoder, shape)
            context.time_base, context.framerate, context.options = Fraction(1, 25), Fraction(25), _options(encoder)
            packets = []
            for _ in range(3):
                noise = np.random.default_rng(number).integers(0, 256, (shape[1], shape[0], 3), dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format=_format(encoder, shape))
                frame.pts, frame.time_base, number = number, Fraction(1, 25), number + 1
                packets += context.encode(frame)
            for packet in [*packets, *context.encode(None)]:
                packet.stream = video
                container.mux(packet)
    return stream.getvalue()


def _format(encoder: str, shape: Shape) -> str:
    return shape[2].replace("yuv4", "yuvj4") if encoder == "mjpeg" else shape[2]


def _set_shape(context: Any, encoder: str, shape: Shape) -> None:
    context.width, context.height, context.pix_fmt = shape[0], shape[1], _format(encoder, shape)


def _options(encoder: str) -> dict[str, str]:
    if encoder == "libx264":
        return {"preset": "ultrafast", "x264-params": "repeat-headers=1"}
    return {"deadline": "realtime", "cpu-used": "8"} if "vpx" in encoder else {}
