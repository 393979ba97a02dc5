"""Buffers that reads share: never given out while somebody sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.shards.storage import local
from energon_dali.shards.storage.local import KEPT_BYTES, LocalReader, ReusedBuffers

SIZE = 100_000


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_buffer_is_used_again_when_its_view_is_gone() -> None:
    buffers = ReusedBuffers()
    view = buffers.take(SIZE)
    first = address(view)
    del view
    assert address(buffers.take(SIZE - 1)) == first


@pytest.mark.parametrize(
    "look",
    [
        lambda view: view[5:9],
        lambda view: np.frombuffer(view, np.uint8)[3:],
        lambda view: torch.frombuffer(view, dtype=torch.uint8),
    ],
    ids=["slice", "array", "tensor"],
)
def test_a_buffer_that_is_seen_is_left_alone(look: Callable[[memoryview], Any]) -> None:
    buffers = ReusedBuffers()
    seen = look(buffers.take(SIZE))
    before = bytes(seen)
    for _ in range(5):
        other = buffers.take(SIZE)
        other[:] = b"\xa5" * SIZE
    assert bytes(seen) == before


def test_views_taken_together_do_not_overlap() -> None:
    buffers = ReusedBuffers()
    for _ in range(3):
        views = [buffers.take(SIZE + number) for number in range(7)]
        for number, view in enumerate(views):
            view[:] = bytes([number]) * len(view)
        assert all(set(view) == {number} for number, view in enumerate(views))
        del view, views


def test_no_more_than_the_limit_is_kept() -> None:
    buffers = ReusedBuffers()
    most = local.MOST_BYTES
    views = [buffers.take(most) for _ in range(KEPT_BYTES // most + 5)]
    addresses = {address(view) for view in views}
    assert len(addresses) == len(views)
    del views[1:]
    assert len({address(buffers.take(most)) for _ in range(3)} & addresses) > 0
    buffers.clear()
    views[0][:3] = b"abc"
    assert bytes(views[0][:3]) == b"abc"


def test_a_view_of_a_file_equals_its_bytes_and_ends_with_the_file(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(3 * SIZE)
    (tmp_path / "file").write_bytes(content)
    reader = LocalReader(str(tmp_path / "file"))
    assert bytes(reader.read_view(17, SIZE)) == content[17 : 17 + SIZE] == reader.read_at(17, SIZE)
    assert bytes(reader.read_view(2 * SIZE + 5, SIZE)) == content[2 * SIZE + 5 :]
    assert isinstance(reader.read_view(0, 100), bytes)
