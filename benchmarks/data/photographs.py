"""Real photographs from the wheels of scikit-image and scikit-learn, and seeded crops of them."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

MEGAPIXEL = 1_000_000


@dataclass(frozen=True, slots=True)
class Photograph:
    """An image in an installed package."""

    package: str
    """Package that ships the file."""
    path: str
    """Path of the file within the package."""
    description: str
    """Description, as the start of a caption."""


PHOTOGRAPHS = (
    Photograph("skimage", "data/astronaut.png", "an astronaut in an orange suit in front of a flag"),
    Photograph("skimage", "data/chelsea.png", "a tabby cat looking past the camera"),
    Photograph("skimage", "data/coffee.png", "a cup of coffee with a spoon on a wooden table"),
    Photograph("skimage", "data/hubble_deep_field.jpg", "galaxies in a small patch of dark sky"),
    Photograph("skimage", "data/motorcycle_left.png", "a motorcycle in a garage, seen from the left"),
    Photograph("skimage", "data/motorcycle_right.png", "a motorcycle in a garage, seen from the right"),
    Photograph("skimage", "data/retina.jpg", "the retina of an eye"),
    Photograph("skimage", "data/rocket.jpg", "a rocket on its launch pad at dusk"),
    Photograph("sklearn", "datasets/images/china.jpg", "a Chinese temple under a blue sky"),
    Photograph("sklearn", "datasets/images/flower.jpg", "an orange dahlia in front of dark leaves"),
)


@dataclass(frozen=True, slots=True)
class Crop:
    """A part of a photograph, resized, with the words that describe it."""

    image: Image.Image
    """The pixels, RGB."""
    caption: str
    """Description of the content."""
    photograph: str
    """File name of the photograph."""
    box: tuple[int, int, int, int]
    """Left, top, right, bottom in pixels of the photograph."""
    mirrored: bool
    """Whether it is mirrored horizontally."""


def find_photograph(photograph: Photograph) -> Path:
    """Returns the path of the file. The package is not imported, because its dependencies may be missing.

    Raises:
        FileNotFoundError: The package is not installed.
    """
    spec = find_spec(photograph.package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"The photograph {photograph.path} comes with the package {photograph.package}, which is not installed. "
            "Install scikit-image and scikit-learn (pip install --no-deps is enough)."
        )
    return Path(spec.submodule_search_locations[0]) / photograph.path


@functools.cache
def open_photograph(photograph: Photograph) -> Image.Image:
    """Returns the whole photograph, RGB; one shared object."""
    picture = Image.open(io.BytesIO(find_photograph(photograph).read_bytes())).convert("RGB")
    picture.info.clear()  # a colour profile of the photograph would be written into every crop
    return picture


def cut(rng: np.random.Generator, *, width: int, height: int) -> Crop:
    """Returns a crop of a photograph, both drawn from `rng`.

    Args:
        rng: Source of every choice.
        width: Width of the result in pixels.
        height: Height of the result in pixels.
    """
    photograph = PHOTOGRAPHS[int(rng.integers(len(PHOTOGRAPHS)))]
    picture = open_photograph(photograph)
    share = rng.uniform(0.35, 1.0)
    scale = min(picture.width / width, picture.height / height) * share**0.5
    box_width, box_height = max(1, int(width * scale)), max(1, int(height * scale))
    left = int(rng.integers(picture.width - box_width + 1))
    top = int(rng.integers(picture.height - box_height + 1))
    box = (left, top, left + box_width, top + box_height)
    mirrored = bool(rng.random() < 0.5)
    image = picture.resize((width, height), Image.Resampling.BICUBIC, box=box)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    across = ("left", "middle", "right")[min(2, 3 * (left + box_width // 2) // picture.width)]
    down = ("top", "centre", "bottom")[min(2, 3 * (top + box_height // 2) // picture.height)]
    place = "centre" if (down, across) == ("centre", "middle") else f"{down} {across}"
    place = "whole" if share > 0.9 else place
    caption = f"{photograph.description}, the {place} of it" + (", mirrored" if mirrored else "")
    return Crop(image, caption, photograph.path.rpartition("/")[2], box, mirrored)


def add_grain(rng: np.random.Generator, image: Image.Image, strength: float = 4.0) -> Image.Image:
    """Adds sensor noise to an image: enlarged images without it compress far too well.

    Args:
        rng: Source of the noise.
        image: The pixels, RGB.
        strength: Standard deviation in levels.
    """
    # One tile for the whole image: random numbers for every pixel would take longer than encoding.
    tile = np.round(rng.normal(0, strength, (257, 263))).astype(np.int16)
    repeats = (-(-image.height // 257), -(-image.width // 263))
    noise = np.tile(tile, repeats)[: image.height, : image.width, None]
    return Image.fromarray(np.clip(np.asarray(image, np.int16) + noise, 0, 255).astype(np.uint8))


def encode(image: Image.Image, format: str, quality: int) -> bytes:
    """Returns an encoded image.

    Args:
        image: The pixels.
        format: "jpg", "progressive" (a JPEG too), "png", "webp", "bmp" or "tif".
        quality: 1 to 100 as Pillow takes it; only JPEG and WebP have one.
    """
    buffer = io.BytesIO()
    if format in ("jpg", "progressive"):
        image.save(buffer, "JPEG", quality=quality, progressive=format == "progressive")
    elif format == "webp":
        image.save(buffer, "WEBP", quality=quality, method=2)
    elif format == "bmp":
        image.save(buffer, "BMP")
    elif format == "tif":
        image.save(buffer, "TIFF", compression="tiff_lzw")
    else:
        image.save(buffer, "PNG", compress_level=3, icc_profile=None)  # libpng rejects some
    return buffer.getvalue()


def encode_to_size(image: Image.Image, target_bytes: int) -> bytes:
    """Returns a JPEG with the integer quality from 60 to 100 whose size is closest to `target_bytes`."""
    low, high = 60, 100
    best = encode(image, "jpg", high)
    while low <= high:
        quality = (low + high) // 2
        data = encode(image, "jpg", quality)
        if abs(len(data) - target_bytes) < abs(len(best) - target_bytes):
            best = data
        if len(data) < target_bytes:
            low = quality + 1
        else:
            high = quality - 1
    return best
