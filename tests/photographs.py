"""Real photographs, from the files of scikit-learn and scikit-image: importing either takes longer than most tests."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

_FILES = {
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
}


def photograph_file(name: str) -> Path:
    """Returns the file of a photograph.

    Args:
        name: "china", "flower", "astronaut", "chelsea" or "coffee".
    """
    package, path = _FILES[name]
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


@cache
def full_photograph(name: str) -> Image.Image:
    """Returns a photograph in RGB at its full size; the caller must not change it."""
    return Image.open(photograph_file(name)).convert("RGB")
