"""Compares `color_quantize`'s Triton kernel with its reference, number by number; `check_triton` runs it."""

from __future__ import annotations

import numpy as np
import torch
from energon_dali.kernels.color_quantize import Palette, color_quantize_reference


def compare(device: str) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Raises:
        AssertionError: A number differs.
    """
    from energon_dali.kernels.color_quantize.kernel import color_quantize_triton

    count = 0
    for pixels, colors in ((0, 3), (1, 1), (1023, 2), (1025, 37), (2048, 100), ((1 << 19) + 7, 2)):
        rng = np.random.default_rng(pixels)
        data = torch.from_numpy(rng.integers(0, 256, (pixels, 3), dtype=np.uint8)).to(device)
        levels = rng.uniform(0, 255, (colors, 3))
        levels[colors // 2 :] = np.rint(levels[: colors - colors // 2])  # whole ones, and colours that are there twice
        coefficients = torch.from_numpy(Palette.from_levels(levels).coefficients()).to(device)
        for dtype in (torch.int16, torch.int32):
            wanted = torch.empty(pixels, dtype=dtype, device=device)
            color_quantize_reference(data, coefficients, wanted)
            for poison in (-1, 9999):
                result = torch.full_like(wanted, poison)
                color_quantize_triton(data, coefficients, result)
                assert torch.equal(result, wanted), (pixels, colors, dtype)
                count += 1
    return count
