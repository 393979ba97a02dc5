"""Small pictures of the media of a sample, and images in a format that every browser shows."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
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
    ((clip,), _) = decoder.get_audio_clips([(0, min(len(decoder.audio.index), 60 * rate))], "samples")
    stored = clip.numpy()[0]
    values = stored.astype(np.float64)
    if stored.dtype.kind in "iu":
        bounds = np.iinfo(stored.dtype)
        values = (values - (bounds.max + bounds.min + 1) / 2) / (bounds.max / (2 if bounds.min == 0 else 1))
    image = Image.new("RGB", (SIDE_PX, SIDE_PX // 2), (236, 240, 241))
    draw = ImageDraw.Draw(image)
    middle = SIDE_PX // 4
    for column, piece in enumerate(np.array_split(values, SIDE_PX)):
        if len(piece):
            top, bottom = (middle * (1 - float(np.clip(edge, -1, 1))) for edge in (piece.max(), piece.min()))
            draw.line((column, top, column, bottom), fill=(0, 120, 110))
    return image


def _encoded(image: Image.Image, format: Literal["JPEG", "PNG"]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **({"quality": 82} if format == "JPEG" else {}))
    return buffer.getvalue()
