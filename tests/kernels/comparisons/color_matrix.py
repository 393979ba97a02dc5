"""Compares `convert_colors`' Triton kernel with its reference, bit for bit; `check_triton` runs it."""

from __future__ import annotations

import numpy as np
import torch
from energon_dali.kernels.color_matrix import IDENTITY, ColorMatrix
from energon_dali.kernels.color_matrix.reference import convert_colors_reference
from energon_dali.kernels.normalization import Normalization, values_of_levels

from tests.kernels.comparisons.poison import poisons

MATRICES = [
    ColorMatrix.between("bt601", "bt709"), IDENTITY,
    ColorMatrix.between("bt601", "bt2020", made_full_range=False, wanted_full_range=True),
]  # fmt: skip
SHAPES = [(1, 1, 1, 1), (1, 2, 3, 5), (3, 1, 31, 33), (2, 2, 17, 61), (3, 2, 32, 32), (2, 1, 6, 174), (2, 0, 4, 4)]
"""Clips, frames, height, width: single pixels, just below and above a block of 1024, exactly one, groups of
four pixels and no whole block, and nothing."""


def compare(device: str) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Raises:
        AssertionError: A bit differs.
    """
    from energon_dali.kernels.color_matrix.kernel import convert_colors_triton

    count = 0
    for shape in SHAPES:
        data = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
        frames = torch.from_numpy(data).to(device)
        rows = [MATRICES[i % 3].rows for i in range(shape[0])]
        coefficients = torch.tensor(rows, dtype=torch.int32, device=device)
        for dtype in (torch.uint8, torch.float32, torch.float16, torch.bfloat16):
            for channels_first in (False, True):
                values = None
                if dtype != torch.uint8:
                    values = values_of_levels(Normalization().coefficients(1).to(device), dtype)
                wanted = convert_colors_reference(frames, coefficients, dtype, channels_first)
                for poison in poisons(dtype == torch.uint8):
                    result = torch.full_like(wanted, poison)
                    convert_colors_triton(frames, coefficients, values, result, channels_first)
                    assert torch.equal(result, wanted), (shape, dtype, channels_first)
                    count += 1
    return count
