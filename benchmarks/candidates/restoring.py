"""Time to the first batch, fresh and restored, and the size of the state. Options: those of energon_style."""

from __future__ import annotations

import io
import statistics
import time
from typing import Any

import torch

from benchmarks.candidates.energon_style import open_loader
from benchmarks.candidates.task import Task

BATCHES_BEFORE_SAVING = 10
ROUNDS = 3


def measure(task: Task) -> dict[str, float]:
    """Returns seconds to the first batch (cold with imports; fresh; restored), and the state in bytes."""
    began = time.perf_counter()
    loader = open_loader(task)
    batches = iter(loader)
    next(batches)
    cold = time.perf_counter() - began
    for _ in range(BATCHES_BEFORE_SAVING - 1):
        next(batches)
    state = loader.save_state_rank()
    expected = next(batches)["__key__"]
    del batches, loader
    fresh, restored = [], []
    for _ in range(ROUNDS):
        fresh.append(_first_batch(task, None)[0])
        seconds, keys = _first_batch(task, state)
        if list(keys) != list(expected):
            raise AssertionError(f"The restored loader goes on with {keys[:3]}, not with {expected[:3]}.")
        restored.append(seconds)
    return {
        "first_batch_cold_seconds": cold,
        "first_batch_fresh_seconds": statistics.median(fresh),
        "first_batch_restored_seconds": statistics.median(restored),
        "restored_over_fresh": statistics.median(restored) / statistics.median(fresh),
        "state_bytes": float(_size(state)),
    }


def _first_batch(task: Task, state: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    loader = open_loader(task)
    if state is not None:
        loader.restore_state_rank(state)
    batch = next(iter(loader))
    return time.perf_counter() - began, batch["__key__"]


def _size(state: Any) -> int:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.tell()
