"""Compares `merge_patches`' Triton kernel with its reference, bit for bit; `check_triton` runs it."""

from __future__ import annotations

import torch
from energon_dali.kernels.merge_patches import merge_patches_reference
from energon_dali.kernels.normalization import Normalization, values_of_levels

from tests.kernels.comparisons.poison import poisons

CASES: list[tuple[tuple[int, ...], tuple[int, int], int, int, bool]] = [
    ((2, 1, 3, 12, 20), (3, 5), 2, 1, False),
    ((1, 5, 3, 8, 8), (2, 2), 2, 2, False),
    ((3, 1, 3, 1, 49), (1, 49), 1, 2, False),
    ((1, 3, 3, 9, 6), (3, 3), 1, 3, True),
    ((2, 1, 1, 34, 34), (34, 34), 1, 1, True),
]
"""Shape of the frames, patch, merged patches, frames of a patch, channels last."""


def compare(device: str) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Raises:
        AssertionError: A bit differs.
    """
    from energon_dali.kernels.merge_patches.kernel import merge_patches_triton

    count = 0
    generator = torch.Generator().manual_seed(3)
    for number, (shape, patch, merge_size, times, channels_last) in enumerate(CASES):
        frames = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
        if number % 2:  # as a decoder gives them: channels last in memory
            frames = frames.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
        numbers = Normalization(0.4, 0.3).coefficients(shape[2]).to(device)
        for dtype in (torch.uint8, torch.float32, torch.bfloat16):
            values = None if dtype == torch.uint8 else values_of_levels(numbers, dtype)
            wanted = merge_patches_reference(frames, patch, merge_size, times, values, channels_last)
            for poison in poisons(dtype == torch.uint8):
                result = torch.full_like(wanted, poison)
                merge_patches_triton(frames, patch, merge_size, times, values, channels_last, result)
                assert torch.equal(result, wanted), (shape, dtype)
                count += 1
    return count
