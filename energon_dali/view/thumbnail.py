"""Small pictures of the media of a sample, and images in a format that every browser shows."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from energon_dali.av import AVDecoder, AVLimits
from energon_dali.decode.images import open_image, screen_image
from energon_dali.errors import DecodeError
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.viewed_sample import ViewedPart, ViewedSample

SIDE_PX = 256
"""Longest side of a thumbnail."""
STRIP_FRAMES = 8
"""Frames of a video that its strip shows."""
WAVEFORM_PX = (960, 96)
"""Size of the picture of all sound of a part."""
WAVEFORM_SECONDS = 30 * 60
"""Longest sound that is drawn: decoding takes its time."""
_PIECE_SECONDS = 60
"""Sound that is decoded at once."""
_MOST_SIDE_PX = 4096
"""Longest side of an image that is converted for the browser."""
_STRIP_HEIGHT_PX = 120
_MOST_BYTES = 512 << 20
_LIMITS = AVLimits(max_seconds=20)

BROWSER_FORMATS = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif"}
"""Formats that are sent as they are, and their content types."""


def make_thumbnail(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> tuple[bytes, str]:
    """Returns (a small picture, its content type) of an image, of a video's first frame, or of the waveform of audio.

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its media parts.

    Raises:
        DecodeError: It cannot be decoded.
        DatasetError: It cannot be read.
        StorageError: The storage does not answer.
    """
    content = _read(dataset, sample, part)
    if part.kind == "image":
        return _encoded(_shrunk(content, SIDE_PX), "JPEG"), "image/jpeg"
    return _av_thumbnail(content)


def make_strip(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> tuple[bytes, str]:
    """Returns (frames of a video, evenly spaced and side by side, as a picture, its content type).

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its videos.

    Raises:
        DecodeError: It cannot be decoded, or has no video.
        DatasetError: It cannot be read.
        StorageError: The storage does not answer.
    """
    content = _read(dataset, sample, part)
    with AVDecoder(content, damaged="partial", apply_rotation=True, limits=_LIMITS, threads=1) as decoder:
        count = len(decoder.video.index)
        chosen = sorted({round(number * (count - 1) / (STRIP_FRAMES - 1)) for number in range(STRIP_FRAMES)})
        clips, _ = decoder.get_video_clips([(number, number) for number in chosen], "frames")
        frames = [Image.fromarray(np.ascontiguousarray(clip[0].permute(1, 2, 0).numpy())) for clip in clips]
    height = min(_STRIP_HEIGHT_PX, frames[0].height)
    small = [frame.resize((max(1, frame.width * height // frame.height), height)) for frame in frames]
    strip = Image.new("RGB", (sum(frame.width for frame in small) + 2 * (len(small) - 1), height), (128, 128, 128))
    left = 0
    for frame in small:
        strip.paste(frame, (left, 0))
        left += frame.width + 2
    return _encoded(strip, "JPEG"), "image/jpeg"


def convert_image(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> tuple[bytes, str]:
    """Returns (an image in a format that browsers show, its content type); most are sent as they are.

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its images.

    Raises:
        DecodeError: It cannot be decoded.
        DatasetError: It cannot be read.
        StorageError: The storage does not answer.
    """
    content = _read(dataset, sample, part)
    found = BROWSER_FORMATS.get(screen_image(content, for_dali=False).format)
    if found is not None:
        return content, found
    return _encoded(_shrunk(content, _MOST_SIDE_PX, draft=False), "PNG"), "image/png"


def _read(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> bytes:
    if part.size > _MOST_BYTES:
        raise DecodeError(f"It has {part.size:,} bytes; up to {_MOST_BYTES:,} are shown as a picture")
    return dataset.read(sample, part)


def _shrunk(content: bytes, side_px: int, *, draft: bool = True) -> Image.Image:
    """Returns an image in RGB or grey, upright, no side longer than `side_px`; transparent pixels are on a grid."""
    header = screen_image(content, for_dali=False)
    try:
        image = open_image(content, header.format)
        if draft:
            image.draft("RGB" if image.mode in ("RGB", "CMYK", "YCbCr") else "L", (side_px, side_px))
        image.load()
        image = ImageOps.exif_transpose(image)
        image = _in_eight_bits(image)
        image.thumbnail((side_px, side_px), Image.Resampling.BICUBIC)
        if image.mode == "RGBA":
            ground = _checkerboard(image.size)
            ground.paste(image, (0, 0), image)
            return ground
        return image
    except DecodeError:
        raise
    except Exception as error:  # codecs raise anything
        raise DecodeError(f"{type(error).__name__}: {error}", header.format, "pil") from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;"):  # stretched, because the range is not known
        values = np.nan_to_num(np.asarray(image, np.float64))
        low, high = float(values.min()), float(values.max())
        scaled = (values - low) * (255 / (high - low) if high > low else 0)
        return Image.fromarray(scaled.astype(np.uint8))
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _checkerboard(size: tuple[int, int]) -> Image.Image:
    columns, rows = np.arange(size[0]) // 8, np.arange(size[1]) // 8
    board = np.where((rows[:, None] + columns[None]) % 2, 205, 245).astype(np.uint8)
    return Image.fromarray(board).convert("RGB")


def _av_thumbnail(content: bytes) -> tuple[bytes, str]:
    with AVDecoder(content, damaged="partial", apply_rotation=True, limits=_LIMITS, threads=1) as decoder:
        if decoder.file.find_stream("video") is None:
            return _encoded(_waveform(decoder), "PNG"), "image/png"
        ((clip,), _) = decoder.get_video_clips([(0, 0)], "frames")
        frame = Image.fromarray(np.ascontiguousarray(clip[0].permute(1, 2, 0).numpy()))
    frame.thumbnail((SIDE_PX, SIDE_PX))
    return _encoded(frame, "JPEG"), "image/jpeg"


def _waveform(decoder: AVDecoder) -> Image.Image:
    """Returns the envelope of the first minute of the audio."""
    rate = decoder.audio.facts.sample_rate or 1
    edges = _envelope(decoder, min(len(decoder.audio.index), 60 * rate), SIDE_PX)
    image = Image.new("RGB", (SIDE_PX, SIDE_PX // 2), (236, 240, 241))
    _draw_envelope(image, edges)
    return image


def make_waveform(dataset: ViewedDataset, sample: ViewedSample, part: ViewedPart) -> tuple[bytes, str]:
    """Returns (the envelope of all sound of a part as a picture, its content type); no bytes if it has no sound.

    The width is the whole duration; after `WAVEFORM_SECONDS`, there is a line alone.

    Args:
        dataset: The dataset.
        sample: The sample.
        part: One of its videos or audio files.

    Raises:
        DecodeError: It cannot be decoded.
        DatasetError: It cannot be read.
        StorageError: The storage does not answer.
    """
    content = _read(dataset, sample, part)
    with AVDecoder(content, damaged="partial", limits=_LIMITS, threads=1) as decoder:
        if decoder.file.find_stream("audio") is None:
            return b"", "image/png"
        rate, total = decoder.audio.facts.sample_rate or 1, len(decoder.audio.index)
        drawn = min(total, WAVEFORM_SECONDS * rate)
        columns = max(1, round(WAVEFORM_PX[0] * drawn / max(1, total)))
        edges = _envelope(decoder, drawn, columns)
    image = Image.new("RGBA", WAVEFORM_PX, (0, 0, 0, 0))  # on the ground of the page, light or dark
    _draw_envelope(image, edges)
    return _encoded(image, "PNG"), "image/png"


def _envelope(decoder: AVDecoder, count: int, columns: int) -> list[tuple[float, float]]:
    """Returns (highest, lowest) of the first samples of the first channel, -1 to 1, for each column of a picture."""
    rate = decoder.audio.facts.sample_rate or 1
    borders = np.linspace(0, count, columns + 1).astype(np.int64)
    edges: list[tuple[float, float]] = []
    step = max(1, int(columns * _PIECE_SECONDS * rate / max(1, count)))  # columns that are decoded at once
    for first in range(0, columns, step):
        own = borders[first : first + step + 1]
        if own[-1] <= own[0]:
            continue
        ((clip,), _) = decoder.get_audio_clips([(int(own[0]), int(own[-1]))], "samples")
        values = _between_ones(clip.numpy()[0])
        for start, stop in pairwise((own - own[0]).tolist()):
            piece = values[start : max(stop, start + 1)]
            if len(piece):
                edges.append((float(piece.max()), float(piece.min())))
    return edges


def _between_ones(stored: NDArray[Any]) -> NDArray[np.float64]:
    values = stored.astype(np.float64)
    if stored.dtype.kind in "iu":
        bounds = np.iinfo(stored.dtype)
        values = (values - (bounds.max + bounds.min + 1) / 2) / (bounds.max / (2 if bounds.min == 0 else 1))
    clipped: NDArray[np.float64] = np.clip(np.nan_to_num(values), -1, 1)
    return clipped


def _draw_envelope(image: Image.Image, edges: Sequence[tuple[float, float]]) -> None:
    draw, middle = ImageDraw.Draw(image), image.height / 2 - 0.5
    draw.line((0, middle, image.width, middle), fill=(120, 140, 138))
    for column, (high, low) in enumerate(edges):
        draw.line((column, middle * (1 - high), column, middle * (1 - low)), fill=(0, 138, 126))


class StoredPixels:
    """Single pixels as a file stores them, for the page that enlarges an image. Keeps the last image. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[str, int, int], Image.Image] | None = None

    def at(self, dataset: ViewedDataset, place: tuple[ViewedSample, ViewedPart], x: float, y: float) -> dict[str, Any]:
        """Returns the pixel at a place, as plain values: x, y, width, height, mode, and the values.

        Args:
            dataset: The dataset.
            place: (sample, one of its images).
            x: Distance from the left edge, 0 to 1; the image is upright, as its Exif data says.
            y: Distance from the upper edge, 0 to 1.

        Raises:
            DecodeError: It cannot be decoded.
            DatasetError: It cannot be read.
            StorageError: The storage does not answer.
        """
        sample, part = place
        key = (dataset.path, sample.index, part.number)
        with self._lock:
            if self._kept is None or self._kept[0] != key:
                self._kept = None  # two large images need not be in memory
                self._kept = (key, _stored(_read(dataset, sample, part)))
            image = self._kept[1]
        column, row = (int(max(0.0, min(1.0, at)) * size) for at, size in ((x, image.width), (y, image.height)))
        column, row = min(column, image.width - 1), min(row, image.height - 1)
        found = image.getpixel((column, row))
        values = list(found) if isinstance(found, tuple) else [found]
        answer = {"x": column, "y": row, "width": image.width, "height": image.height, "mode": image.mode}
        if image.mode == "P":
            answer["color"] = list(image.crop((column, row, column + 1, row + 1)).convert("RGBA").getpixel((0, 0)))  # type: ignore[arg-type]
        return {**answer, "values": values}


def _stored(content: bytes) -> Image.Image:
    """Returns an image with its pixels as they are stored, upright."""
    header = screen_image(content, for_dali=False)
    try:
        image = open_image(content, header.format)
        image.load()
        return ImageOps.exif_transpose(image)
    except Exception as error:  # codecs raise anything
        raise DecodeError(f"{type(error).__name__}: {error}", header.format, "pil") from error


def _encoded(image: Image.Image, format: Literal["JPEG", "PNG"]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **({"quality": 82} if format == "JPEG" else {}))
    return buffer.getvalue()
