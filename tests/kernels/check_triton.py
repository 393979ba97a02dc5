"""Compares the Triton kernels with their references, bit for bit, on the device that is given; a program of its own.

    python -m tests.kernels.check_triton cuda
    TRITON_INTERPRET=1 python -m tests.kernels.check_triton cpu     (slow, needs no GPU)
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from energon_dali.kernels.color_matrix import IDENTITY, ColorMatrix
from energon_dali.kernels.color_matrix.reference import convert_colors_reference

from tests.kernels.triton_checks import color_quantize, pack_tokens, pad_stack, patchify

MATRICES = [
    ColorMatrix.between("bt601", "bt709"), IDENTITY,
    ColorMatrix.between("bt601", "bt2020", made_full_range=False, wanted_full_range=True),
]  # fmt: skip
SHAPES = [(1, 1, 1, 1), (1, 2, 3, 5), (3, 1, 31, 33), (2, 2, 17, 61), (3, 2, 32, 32), (2, 0, 4, 4)]
"""Clips, frames, height, width: single pixels, just below and above a block of 1024, exactly one, and nothing."""


def compare(device: str) -> int:
    """Returns the number of comparisons; every output is poisoned twice, so that an element left out shows.

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
                wanted = convert_colors_reference(frames, coefficients, dtype, channels_first)
                for poison in (17, 203) if dtype == torch.uint8 else (float("nan"), -1.0):
                    result = torch.full_like(wanted, poison)
                    convert_colors_triton(frames, coefficients, result, channels_first)
                    assert torch.equal(result, wanted), (shape, dtype, channels_first)
                    count += 1
    return count


CHECKS = {
    "color_matrix": compare,
    "pad_stack": pad_stack.compare,
    "patchify": patchify.compare,
    "color_quantize": color_quantize.compare,
    "pack_tokens": pack_tokens.compare,
}
"""What compares each operation."""


if __name__ == "__main__":
    for name, check in CHECKS.items():
        print(f"{name}: {check(sys.argv[1])} comparisons, all equal", flush=True)
