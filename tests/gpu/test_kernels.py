"""Every kernel compiled for the GPU equals its reference, bit for bit."""

from __future__ import annotations

import pytest

from tests.kernels.check_triton import CHECKS


@pytest.mark.parametrize("operation", sorted(CHECKS))
def test_the_kernel_equals_its_reference_bit_for_bit(operation: str) -> None:
    assert CHECKS[operation]("cuda") > 0
