"""Random images of different sizes, the same in every run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHANNELS = 3


def ragged_images(count: int, sides: tuple[int, int], device: str, *, planes: bool = False) -> list[torch.Tensor]:
    """Returns uint8[h, w, 3], or [3, h, w] as planes; height and width are drawn from a range.

    Args:
        count: Images.
        sides: Shortest and longest side, in pixels.
        device: Their device.
        planes: Whether the channels come first.
    """
    import torch

    draw = random.Random(count * 10_000 + sides[1])
    generator = torch.Generator(device).manual_seed(count)
    images = []
    for _ in range(count):
        height, width = draw.randint(*sides), draw.randint(*sides)
        shape = (CHANNELS, height, width) if planes else (height, width, CHANNELS)
        images.append(torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator))
    return images
