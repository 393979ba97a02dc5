"""Memory of large batches: contiguous, aligned, writable, and used again when nothing refers to it any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from energon_dali.decode.front_ends import value_memory
from energon_dali.decode.front_ends.value_memory import empty_values, zero_values

_CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(value_memory, "_LARGE_BYTES", 100)
    value_memory._kept.clear()
    yield
    value_memory._kept.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
@pytest.mark.parametrize("shape", [(5, 3, 70), (2, 3)], ids=["large", "small"])
def test_memory_of_values(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    made = empty_values(shape, dtype, _CPU)
    assert (made.shape, made.dtype, made.is_contiguous(), made.data_ptr() % 64) == (shape, dtype, True, 0)
    values = (torch.arange(made.numel()) % 256).view(shape)
    assert torch.equal(made.copy_(values).float(), values.to(dtype).float())
    assert not zero_values(shape, dtype, _CPU).any()


def test_memory_is_used_again_when_no_view_is_left() -> None:
    first = empty_values((100,), torch.float32, _CPU)
    address, view = first.data_ptr(), first.view(10, 10)[3].numpy()
    del first
    second = empty_values((100,), torch.float32, _CPU)
    assert second.data_ptr() != address
    del view
    third = empty_values((120,), torch.float32, _CPU)  # a quarter larger at most
    assert third.data_ptr() == address
    del third
    assert zero_values((101,), torch.float32, _CPU).data_ptr() == address


@pytest.mark.parametrize("count", [200, 30], ids=["larger", "much smaller"])
def test_memory_that_does_not_fit_is_given_up(count: int) -> None:
    kept = empty_values((150,), torch.float32, _CPU)
    del kept
    assert len(value_memory._kept) == 1
    other = empty_values((count,), torch.float32, _CPU)
    assert len(other) == count
    assert not value_memory._kept


def test_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_memory, "_LARGE_BYTES", 0)
    assert empty_values((0, 3), torch.float32, _CPU).shape == (0, 3)
