"""Compares `pad_stack`'s Triton kernel with its reference, bit for bit; `check_triton` runs it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from energon_dali.kernels.normalization import Normalization, values_of_levels
from energon_dali.kernels.pad_stack import pad_stack_reference

from tests.kernels.comparisons.poison import poisons
from tests.kernels.ragged import SIZES, images_of


def compare(device: str, *, sampled: bool = False) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Batches of float16 are taken for so large that offsets need 64 bits.

    Args:
        device: Where both run.
        sampled: Leaves out every second combination; each pair of a batch, a dtype and a layout remains.

    Raises:
        AssertionError: A bit differs.
    """
    from energon_dali.kernels.pad_stack import kernel

    def pad_stack_triton(*arguments: Any) -> None:
        with mock.patch.object(kernel, "WIDE_BYTES", 0 if dtype == torch.float16 else kernel.WIDE_BYTES):
            kernel.pad_stack_triton(*arguments)

    count = 0
    for case, sizes in enumerate(SIZES):
        channels = (3, 3, 1, 4, 3)[case]
        images = images_of(sizes, channels, device)
        flips = [index % 3 != 1 for index in range(len(sizes))]
        height, width = max(size[0] for size in sizes) + case % 2, max(size[1] for size in sizes)
        for kind, dtype in enumerate((torch.uint8, torch.float32, torch.float16, torch.bfloat16)):
            numbers = None
            if dtype != torch.uint8:
                numbers = Normalization((0.485,) * channels, tuple(0.2 + 0.03 * c for c in range(channels)))
            coefficients = numbers and numbers.coefficients(channels).to(device)
            values = None if coefficients is None else values_of_levels(coefficients, dtype)
            shapes = (len(sizes), height, width, channels), (len(sizes), channels, height, width)
            for layout, shape in enumerate(shapes):
                if sampled and (case + kind + layout) % 2:
                    continue
                outputs = []
                for poison in poisons(dtype == torch.uint8):
                    for run in (pad_stack_reference, pad_stack_triton):
                        result = torch.full(shape, poison, dtype=dtype, device=device)
                        place = result if shape[1:] == (height, width, channels) else result.movedim(1, -1)
                        run(images, flips, coefficients if run is pad_stack_reference else values, place)
                        outputs.append(result)
                assert all(torch.equal(output, outputs[0]) for output in outputs), (sizes, dtype, shape)
                count += 1
    return count
