"""Every kernel compiled for the GPU equals its reference bit for bit, also when it builds batches."""

from __future__ import annotations

import pytest
import torch

from energon_dali import batch_pad_stack
from tests.kernels.check_triton import CHECKS
from tests.kernels.ragged import SIZES, images_of


@pytest.mark.parametrize("operation", sorted(CHECKS))
def test_the_kernel_equals_its_reference_bit_for_bit(operation: str) -> None:
    assert CHECKS[operation]("cuda") > 0


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_batches_of_images_are_those_of_the_cpu(sizes: list[tuple[int, int]]) -> None:
    images = images_of(sizes, 3)
    for batch in (images, [image.movedim(-1, 0) for image in images]):
        on_gpu = batch_pad_stack([image.cuda() for image in batch])
        assert torch.equal(on_gpu.cpu(), batch_pad_stack(batch))
