"""A simulated training step: it lasts for a given time, computes nothing useful, and waits for its end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

_SIDE = 4096
"""Size of the matrices that are multiplied on a GPU."""


def make_training_step(device: str, seconds: float) -> tuple[Callable[[], None], float]:
    """Returns (function that runs one step, duration of a step when nothing else runs).

    On a GPU it is a row of matrix products on the current stream, after which the host waits for it, as a trainer does
    that reads its loss. On the CPU it is a sleep: the trainer is taken to compute elsewhere.

    Args:
        device: "gpu" or "cpu".
        seconds: How long a step has to last at least.
    """
    if device == "cpu":
        return lambda: time.sleep(seconds), seconds
    import torch

    matrix = torch.rand((_SIDE, _SIDE), device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(matrix)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.current_stream().synchronize()

    multiply(20)  # until the clocks have ramped up
    one = _median_seconds(lambda: multiply(20)) / 20
    times = max(1, -int(-seconds // one))
    return lambda: multiply(times), _median_seconds(lambda: multiply(times))


def measure_blocked(
    take: Callable[[], Any], step: Callable[[], None], alone_seconds: float, *, seconds: float, steps: int
) -> dict[str, float]:
    """Returns the share of time that a trainer waits for batches, and how much longer its steps take during decoding.

    Args:
        take: Gives the next batch, when its content is there.
        step: What the trainer does with it.
        alone_seconds: How long a step takes when nothing else runs.
        seconds: End after this many seconds,
        steps: but not before this many steps.
    """
    for _ in range(3):  # until the queues are full
        take()
        step()
    waited, count, began = 0.0, 0, time.perf_counter()
    while count < steps or time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        take()
        waited += time.perf_counter() - asked
        step()
        count += 1
    whole = time.perf_counter() - began
    return {
        "trainer_blocked_share": waited / whole,
        "training_step_seconds": alone_seconds,
        "training_step_slowdown": (whole - waited) / count / alone_seconds,
    }


def _median_seconds(work: Callable[[], None]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
