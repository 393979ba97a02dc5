"""Images and videos in memory for the tuning sweeps, made from the photographs in `benchmarks.data`."""

from __future__ import annotations

import functools
import io
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from benchmarks.data.photographs import cut, encode_to_size

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {"quality": 90}),
    "jpeg progressive": ("JPEG", {"quality": 90, "progressive": True}),
    "png": ("PNG", {"compress_level": 3}),
    "tiff": ("TIFF", {}),
    "bmp": ("BMP", {}),
    "pnm": ("PPM", {}),
}
"""PIL's name and options by the label in tables; the label's first word is the format of `thresholds.IMAGES`."""

CODECS: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264": ("libx264", "mp4", {"preset": "veryfast"}),
    "hevc": ("libx265", "mp4", {"preset": "ultrafast", "x265-params": "log-level=none"}),
    "vp9": ("libvpx-vp9", "webm", {"deadline": "realtime", "cpu-used": "8"}),
    "vp8": ("libvpx", "webm", {"deadline": "realtime", "cpu-used": "8", "b": "2M"}),
    "mjpeg": ("mjpeg", "mp4", {}),
    "mpeg4": ("mpeg4", "matroska", {"b": "4M"}),  # an mp4 container does not store its size, so PyAV would decode it
}
"""Encoder, container and the encoder's options by codec."""


def photographs(count: int, size: tuple[int, int], *, threads: int) -> list[Image.Image]:
    """Returns different images of one size, (width, height); every call returns the same."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda number: _photograph(number, size), range(count)))


@functools.lru_cache(maxsize=64)
def _photograph(number: int, size: tuple[int, int]) -> Image.Image:
    return cut(np.random.default_rng(number), width=size[0], height=size[1]).image


def jpegs(count: int, size: tuple[int, int], target_bytes: int | None, *, threads: int) -> list[bytes]:
    """Returns JPEGs of about `target_bytes` each, or of quality 90."""
    images = photographs(count, size, threads=threads)
    with ThreadPoolExecutor(threads) as pool:
        if target_bytes is None:
            return list(pool.map(lambda image: encode_image(image, "jpeg"), images))
        return list(pool.map(lambda image: encode_to_size(image, target_bytes), images))


def encode_image(image: Image.Image, label: str) -> bytes:
    """Returns an image in one of FORMATS."""
    name, options = FORMATS[label]
    stream = io.BytesIO()
    image.save(stream, name, **options)
    return stream.getvalue()


@functools.lru_cache(maxsize=4)
def _wide_pixels(width: int, height: int) -> Any:
    return np.asarray(_photograph(1, (width, height)))


def encode_video(codec: str, size: tuple[int, int], frames: int) -> bytes:
    """Returns a video, one group of pictures (GOP), that pans over a photograph by two pixels per frame."""
    encoder, container, options = CODECS[codec]
    (width, height), stream = size, io.BytesIO()
    wide = _wide_pixels(width + 2 * frames, height)
    with av.open(stream, "w", format=container) as output:
        video: Any = output.add_stream(encoder, rate=25, options=options)
        video.width, video.height, video.codec_context.gop_size = width, height, frames
        video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(frames):
            pixels = np.ascontiguousarray(wide[:, 2 * number : 2 * number + width])
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
    return stream.getvalue()
