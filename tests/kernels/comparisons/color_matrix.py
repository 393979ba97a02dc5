"""Compares `convert_colors`' Triton kernel with its reference, bit for bit; `check_triton` runs it."""

from __future__ import annotations

import numpy as np
import torch
from energon_dali.kernels.color_matrix import FRACTION_BITS, IDENTITY, ColorMatrix, convert_colors_reference
from energon_dali.kernels.normalization import Normalization, values_of_levels

from tests.kernels.comparisons.poison import poisons

MATRICES = [
    ColorMatrix.between("bt601", "bt709"),
    IDENTITY,
    ColorMatrix.between("bt601", "bt2020", made_full_range=False, wanted_full_range=True),
]
SHAPES = [(1, 1, 1, 1), (1, 2, 3, 5), (3, 1, 31, 33), (2, 2, 17, 61), (3, 2, 32, 32), (2, 1, 6, 174), (2, 0, 4, 4)]
"""Clips, frames, height, width: single pixels, just below and above a block of 1024, exactly one, groups of
four pixels and no whole block, and nothing."""


def compare(device: str, *, sampled: bool = False) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Args:
        device: Where both run.
        sampled: Leaves out every second combination; each pair of a shape, a dtype and a layout remains.

    Raises:
        AssertionError: A bit differs.
    """
    from energon_dali.kernels.color_matrix.kernel import convert_colors_triton

    count = 0
    for case, shape in enumerate(SHAPES):
        data = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
        frames = torch.from_numpy(data).to(device)
        rows = [MATRICES[i % 3].rows for i in range(shape[0])]
        coefficients = torch.tensor(rows, dtype=torch.int32, device=device)
        for kind, dtype in enumerate((torch.uint8, torch.float32, torch.float16, torch.bfloat16)):
            for channels_first in (False, True):
                if sampled and (case + kind + channels_first) % 2:
                    continue
                values = None
                if dtype != torch.uint8:
                    values = values_of_levels(Normalization().coefficients(1).to(device), dtype)
                wanted = convert_colors_reference(frames, coefficients, dtype, channels_first)
                for poison in poisons(dtype == torch.uint8):
                    result = torch.full_like(wanted, poison)
                    convert_colors_triton(frames, coefficients, values, result, channels_first, FRACTION_BITS)
                    assert torch.equal(result, wanted), (shape, dtype, channels_first)
                    count += 1
    return count + _compare_a_wide_frame(device)


def _compare_a_wide_frame(device: str) -> int:
    """Runs the first block of a frame whose planes begin beyond 2**31; of its memory nothing else is touched."""
    from energon_dali.kernels.color_matrix.kernel import _convert

    pixels, block = 2**30, 64
    data = np.random.default_rng(1).integers(0, 256, (1, 1, 1, block, 3), dtype=np.uint8)
    frames = torch.from_numpy(data).to(device)
    coefficients = torch.tensor([MATRICES[0].rows], dtype=torch.int32, device=device)
    result = torch.empty(2 * pixels + block, dtype=torch.uint8, device=device)
    _convert[(1,)](
        frames,
        coefficients,
        coefficients,
        result,
        1,
        pixels,
        pixels // block,
        CHANNELS_FIRST=True,
        TO_BYTES=True,
        BITS=FRACTION_BITS,
        BLOCK=block,
    )
    wanted = convert_colors_reference(frames, coefficients, torch.uint8, True).view(3, block)
    got = torch.stack([result[plane * pixels : plane * pixels + block] for plane in range(3)])
    assert torch.equal(got, wanted), "planes beyond 2**31"
    return 1
