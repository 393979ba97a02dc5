"""Compares `patchify`'s Triton kernel with its reference, bit for bit; `check_triton` runs it."""

from __future__ import annotations

from unittest import mock

import torch
from energon_dali.kernels.normalization import Normalization, values_of_levels
from energon_dali.kernels.patchify import Grid, patchify_reference, token_starts

from tests.kernels.comparisons.poison import poisons
from tests.kernels.ragged import SIZES, images_of

CASES = [(0, 3, 14, 1), (1, 3, 5, 2), (2, 1, 4, 2), (2, 3, 8, 1), (3, 4, 7, 3), (4, 3, 2, 2)]
"""Which sizes, channels, patch size, frames of a patch: with and without patches over the edge."""


def compare(device: str, *, sampled: bool = False) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Clips that become float16 are taken for so large that offsets need 64 bits.

    Args:
        device: Where both run.
        sampled: Leaves out every second combination; two dtypes of each case, and three cases of each dtype remains.

    Raises:
        AssertionError: A bit differs.
    """
    from energon_dali.kernels.pad_stack import kernel
    from energon_dali.kernels.patchify.kernel import patchify_triton

    count = 0
    for number, (case, channels, patch_size, times) in enumerate(CASES):
        sizes = SIZES[case]
        clips = images_of(sizes, channels, device, frames=1 + case % 3)
        grids = [Grid.of(clip, patch_size, times) for clip in clips]
        starts = token_starts(grids)
        shape = (starts[-1], channels * times * patch_size**2)
        numbers = Normalization((0.485,) * channels, tuple(0.2 + 0.03 * c for c in range(channels)))
        for kind, dtype in enumerate((torch.uint8, torch.float32, torch.float16, torch.bfloat16)):
            if sampled and (number + kind) % 2:
                continue
            placed = None if dtype == torch.uint8 else numbers.coefficients(channels).to(device)
            values = None if placed is None else values_of_levels(placed, dtype)
            wanted = (
                torch.empty(shape, dtype=dtype, device=device),
                torch.empty((starts[-1], 3), dtype=torch.int32, device=device),
            )
            patchify_reference(clips, patch_size, times, placed, *wanted)
            for poison in poisons(dtype == torch.uint8):
                tokens = torch.full_like(wanted[0], poison)
                positions = torch.full_like(wanted[1], -1)  # no position is negative
                with mock.patch.object(kernel, "WIDE_BYTES", 0 if dtype == torch.float16 else kernel.WIDE_BYTES):
                    cu_seqlens = patchify_triton(clips, grids, patch_size, times, values, tokens, positions)
                assert torch.equal(tokens, wanted[0]), (sizes, dtype)
                assert torch.equal(positions, wanted[1]), (sizes, dtype)
                assert cu_seqlens.tolist() == starts, (sizes, dtype)
                count += 1
    return count
