"""Encoded images to compare front ends with processors: parts of photographs, in all modes, and extreme sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from PIL import Image

from tests.decode.sample_images import encode, exif, photograph, with_alpha

PHOTOGRAPHS = ("china", "flower", "astronaut", "coffee", "chelsea")
_PHOTOGRAPH_SIZE = (900, 675)
EXTREME_SIZES = (
    *((1, 1), (2, 1), (1, 3), (7, 5), (28, 28), (1, 100), (100, 1)),
    *((1, 8000), (8000, 1), (40, 4100), (3000, 9)),
)
"""Width and height. Processors refuse some of them, or make very many tiles."""
MODES = ("rgb", "gray", "palette", "cmyk", "alpha", "gray-alpha", "transparent-palette", "exif", "progressive", "webp")


@lru_cache
def _photographs() -> tuple[Image.Image, ...]:
    return tuple(photograph(name, _PHOTOGRAPH_SIZE) for name in PHOTOGRAPHS)


def encoded(image: Image.Image, mode: str, orientation: int = 6) -> tuple[str, bytes]:
    """Returns (part name, file) of an image in one of `MODES`."""
    if mode == "gray":
        return "jpg", encode(image.convert("L"), "JPEG", quality=90)
    if mode == "palette":
        return "png", encode(image.convert("P", palette=Image.Palette.ADAPTIVE), "PNG")
    if mode == "cmyk":
        return "jpg", encode(image.convert("CMYK"), "JPEG", quality=90)
    if mode == "alpha":
        return "png", encode(with_alpha(image), "PNG")
    if mode == "gray-alpha":
        return "png", encode(with_alpha(image).convert("LA"), "PNG")
    if mode == "transparent-palette":
        return "png", encode(image.convert("P", palette=Image.Palette.ADAPTIVE), "PNG", transparency=3)
    if mode == "exif":
        return "jpg", encode(image, "JPEG", quality=90, exif=exif(orientation))
    if mode == "progressive":
        return "jpg", encode(image, "JPEG", quality=85, progressive=True)
    if mode == "webp" and max(image.size) < 16_000:
        return "webp", encode(image, "WEBP", quality=80)
    return "jpg", encode(image, "JPEG", quality=92)


def draw_images(
    count: int, seed: int, *, largest: int = 900, extremes: bool = True, largest_ratio: float = 8000
) -> Iterator[tuple[str, str, bytes]]:
    """Yields (description, part name, file) of images: first the extreme sizes, then random parts of photographs.

    Args:
        count: How many in all.
        seed: Determines them.
        largest: Longest side of the random parts, in pixels.
        extremes: Whether the extreme sizes come first, as far as `count` reaches.
        largest_ratio: Extreme sizes with a larger aspect ratio are left out: some processors need gigabytes for them.
    """
    draw = random.Random(seed)
    photographs = _photographs()
    extreme_sizes = [size for size in EXTREME_SIZES if max(size) <= largest_ratio * min(size)] if extremes else []
    for number in range(count):
        image = photographs[draw.randrange(len(photographs))]
        if number < len(extreme_sizes):
            width, height = extreme_sizes[number]
            mode = "rgb"
        else:
            # Sides follow a logarithmic scale, so that small images and long ones are as frequent as common ones.
            width, height = (round(8 * (largest / 8) ** draw.random()) for _ in range(2))
            if draw.random() < 0.6:
                width, height = max(width, largest // 4), max(height, largest // 4)
            mode = MODES[draw.randrange(len(MODES))] if draw.random() < 0.5 else "rgb"
        if width <= image.width and height <= image.height:
            left, top = draw.randrange(image.width - width + 1), draw.randrange(image.height - height + 1)
            part = image.crop((left, top, left + width, top + height))
        else:
            part = image.resize((width, height))
        name, data = encoded(part, mode, draw.randrange(2, 9))
        yield f"{number}: {mode} {width}x{height}", name, data
