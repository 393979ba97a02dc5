"""Images of awkward sizes and different memory layouts, for every operation that takes ragged images."""

from __future__ import annotations

import numpy as np
import torch

SIZES = [[(1, 1)], [(5, 3), (31, 33), (0, 7), (1, 64)], [(32, 32), (32, 32)], [(17, 67), (67, 17), (40, 1)], [(0, 0)]]
"""Height and width of each image of a batch: single pixels, rows and columns, about a tile of 16 x 64, and empty."""


def images_of(sizes: list[tuple[int, int]], channels: int, device: str = "cpu", frames: int = 0) -> list[torch.Tensor]:
    """Returns uint8[H, W, C], or [F, H, W, C] with frames; every second one is a crop of a larger tensor."""
    images = []
    for index, (height, width) in enumerate(sizes):
        leading = (frames + index,) if frames else ()
        rng = np.random.default_rng(height * 1000 + width + index)
        data = torch.from_numpy(rng.integers(0, 256, (*leading, height + 3, width + 2, channels), dtype=np.uint8))
        crop = data.to(device)[..., 1 : 1 + height, 2 : 2 + width, :]
        images.append(crop if index % 2 else crop.contiguous())
    return images
