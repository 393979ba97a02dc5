"""The styles of images of a dataset, by name."""

from __future__ import annotations

import numpy as np

from benchmarks.data.pages import draw_page
from benchmarks.data.photographs import Crop, add_grain, cut, encode, encode_to_size

_FORMATS = ("jpg", "progressive", "png", "webp", "bmp", "tif")
_SHARES = (0.5, 0.1, 0.15, 0.15, 0.05, 0.05)


def picture(style: str, rng: np.random.Generator, size: tuple[int, int], target_bytes: int) -> tuple[str, Crop, bytes]:
    """Returns (suffix, pixels and their description, encoded image).

    Args:
        style: As `Recipe.style` says; not "video".
        rng: Source of every choice.
        size: (width, height) in pixels.
        target_bytes: Of a JPEG of style "jpeg".

    Raises:
        ValueError: The style is unknown.
    """
    if style == "mixed":
        return _mixed(rng)
    if style == "jpeg":
        crop = cut(rng, width=_about(rng, size[0]), height=_about(rng, size[1]))
        return "jpg", crop, encode_to_size(crop.image, target_bytes)
    if style == "formats":
        format = str(rng.choice(_FORMATS, p=_SHARES))
        crop = cut(rng, width=_about(rng, size[0]), height=_about(rng, size[1]))
        return "jpg" if format == "progressive" else format, crop, encode(crop.image, format, 90)
    if style == "webp":
        format = str(rng.choice(("jpg", "webp"), p=(0.7, 0.3)))
        crop = cut(rng, width=_about(rng, size[0]), height=_about(rng, size[1]))
        return format, crop, encode(crop.image, format, 90)
    if style == "photo":
        crop = cut(rng, width=size[0], height=size[1])
        return "jpg", crop, encode(add_grain(rng, crop.image), "jpg", 90)
    if style == "camera":
        crop = cut(rng, width=size[0], height=size[1])
        return "jpg", crop, encode_to_size(add_grain(rng, crop.image), target_bytes)
    if style == "page":
        page = draw_page(rng, width=size[0], height=size[1])
        return "png", page, encode(page.image, "png", 0)
    raise ValueError(f"{style=} is none of mixed, jpeg, formats, webp, photo, camera, page.")


def _about(rng: np.random.Generator, pixels: int) -> int:
    return int(pixels * rng.uniform(0.85, 1.15))


def _mixed(rng: np.random.Generator) -> tuple[str, Crop, bytes]:
    suffix = str(rng.choice(["jpg", "png", "webp"], p=[0.7, 0.15, 0.15]))
    quality = int(rng.integers(80, 97))
    long_side = int(rng.integers(256, 360) if suffix == "png" else rng.integers(400, 900))
    aspect = float(np.exp(rng.uniform(np.log(0.6), np.log(1.7))))
    while True:
        width = long_side if aspect >= 1 else int(long_side * aspect)
        height = int(long_side / aspect) if aspect >= 1 else long_side
        crop = cut(rng, width=width, height=height)
        data = encode(crop.image, suffix, quality)
        if 20_000 <= len(data) <= 300_000:
            return suffix, crop, data
        long_side = int(long_side * (1.3 if len(data) < 20_000 else 0.8))
