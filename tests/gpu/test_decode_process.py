"""A decode process sends GPU tensors by CUDA IPC: their values, CUDA streams, memory and lifetime."""

from __future__ import annotations

import gc
import os
import signal
from itertools import islice
from typing import Any

import pytest
import torch

from energon_dali import WorkerConfig, WorkerDiedError
from energon_dali.loader.get_loader import get_savable_loader
from tests.loader.numbers_dataset import tree

ELEMENTS = 300_000


def made_late(stream: int, epoch: int, at: int) -> dict[str, Any]:
    """Returns a batch whose values are written long after the call: a reader that does not wait sees the old values."""
    pixels = torch.full((ELEMENTS,), 255, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
    pixels.fill_(at % 251)
    return {
        "at": at,
        "pixels": pixels,
        "part": pixels[1000:9000].view(80, 100),
        "turned": pixels[: 3 * 40 * 50].view(40, 50, 3).permute(2, 0, 1),
        "wide": torch.full((5000,), float(at), dtype=torch.bfloat16, device="cuda"),
        "mask": torch.ones(7, dtype=torch.bool, device="cuda"),
        "none": torch.empty(0, 3, device="cuda"),
        "host": torch.full((6000,), at),
    }


def loader(**options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    dataset = tree(config, lengths=[10_000], make=made_late, block_size=1)
    return get_savable_loader(dataset, decode_process=True, **options)


def check(batch: dict[str, Any], at: int) -> None:
    assert batch["at"] == at
    assert batch["pixels"].device == torch.device("cuda", torch.cuda.current_device())
    for name in ("pixels", "part", "turned"):
        assert batch[name].dtype == torch.uint8
        assert bool((batch[name] == at % 251).all()), f"{name} of batch {at}"
    assert batch["turned"].stride() == (1, 150, 3)
    assert batch["wide"].tolist() == torch.full((5000,), float(at), dtype=torch.bfloat16).tolist()
    assert (batch["mask"].tolist(), batch["none"].shape) == ([True] * 7, (0, 3))
    assert batch["none"].device == batch["pixels"].device
    assert batch["host"].tolist() == [at] * 6000


@pytest.mark.parametrize("pin_memory", [False, True])
def test_values_arrive_in_the_order_of_streams(pin_memory: bool) -> None:
    with loader(pin_memory=pin_memory) as batches:
        iterator = iter(batches)
        for at in range(6):
            batch = next(iterator)
            check(batch, at)
            assert batch["host"].is_pinned() == pin_memory
            batch["pixels"][1000] = 250
            assert int(batch["part"][0, 0]) == 250  # they share memory here too
        other = torch.cuda.Stream()
        for at in range(6, 30):
            with torch.cuda.stream(other):
                check(next(iterator), at)


def test_a_batch_that_is_used_late_is_not_overwritten() -> None:
    with loader(pin_memory=False, prefetch_factor=3) as batches:
        sums = []
        for batch in islice(batches, 60):
            torch.cuda._sleep(30_000_000)  # type: ignore[no-untyped-call]  # the batch is dropped long before it is read
            sums.append(batch["pixels"].to(torch.int64).sum())
            del batch
        assert [int(total) for total in sums] == [at % 251 * ELEMENTS for at in range(60)]


def test_tensors_that_are_held_stay_over_100_batches_and_after_the_end() -> None:
    batches = loader(pin_memory=False)
    iterator = iter(batches)
    held = [next(iterator)["part"] for _ in range(3)]
    for at in range(3, 110):
        batch = next(iterator)
        if at % 20 == 0:
            check(batch, at)
    del batch, iterator
    pid = batches._prefetcher.process.pid
    batches.close()
    del batches  # the tensors keep nothing else of the loader alive
    torch.cuda.synchronize()
    assert [int(part.max()) for part in held] == [0, 1, 2]
    assert [int(part.min()) for part in held] == [0, 1, 2]
    os.kill(pid, 0)  # the process still runs, because its memory is in use
    del held
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_memory_is_used_again() -> None:
    with loader(pin_memory=False, prefetch_factor=2) as batches:
        iterator = iter(batches)
        for _ in range(10):
            next(iterator)
        torch.cuda.synchronize()
        free_before, _ = torch.cuda.mem_get_info()
        for _ in range(300):
            next(iterator)
        torch.cuda.synchronize()
        free_after, _ = torch.cuda.mem_get_info()
        assert free_before - free_after < 64 << 20


def test_a_killed_decode_process_is_an_error() -> None:
    batches = loader(pin_memory=False)
    iterator = iter(batches)
    next(iterator)
    os.kill(batches._prefetcher.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
        list(islice(iterator, 20))
