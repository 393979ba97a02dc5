"""Memory of large batches: contiguous, aligned, writable, and free of other tensors' values."""

from __future__ import annotations

import pytest
import torch

from energon_dali.decode.front_ends import value_memory
from energon_dali.decode.front_ends.value_memory import empty_values, zero_values

_CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
@pytest.mark.parametrize("large", [1, 1 << 40], ids=["large", "small"])
def test_memory_of_values(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, large: int) -> None:
    monkeypatch.setattr(value_memory, "_LARGE_BYTES", large)
    made = empty_values((5, 3, 7), dtype, _CPU)
    assert (made.shape, made.dtype, made.is_contiguous(), made.data_ptr() % 64) == ((5, 3, 7), dtype, True, 0)
    made.copy_(torch.arange(105).view(5, 3, 7))
    assert torch.equal(made.float(), torch.arange(105.0).view(5, 3, 7))
    assert not zero_values((5, 3, 7), dtype, _CPU).any()


def test_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_memory, "_LARGE_BYTES", 0)
    assert empty_values((0, 3), torch.float32, _CPU).shape == (0, 3)
