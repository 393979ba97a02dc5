"""Times of calls on a device: the work of the device, and the total cost of a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

_FLUSHED_BYTES = 256 << 20
"""More than the L2 cache of any GPU, so that inputs are read from memory, like a new batch."""
_CALLS = 20
"""Number of consecutive calls over which the cost is averaged."""
_CYCLES_PER_SECOND = 2e9


def seconds_of(run: Callable[[], Any], device: str, repetitions: int) -> tuple[float, float]:
    """Returns medians: seconds of device work per call, and seconds per call in a sequence of calls.

    On a GPU the first comes from CUDA events, after a wait that lets the host get ahead, so that what Python does is
    not in it, and with an empty cache; the second is wall time of calls in a row, Python's part included. On the CPU
    both are wall time.

    Args:
        run: The call.
        device: As torch names it.
        repetitions: Over which the median is taken.
    """
    run()
    if device == "cpu":
        seconds = statistics.median(_wall(run, 1) for _ in range(repetitions))
        return seconds, seconds
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    host_seconds = time.perf_counter() - began
    calls = _CALLS if host_seconds < 0.01 else 3
    call_seconds = statistics.median(_wall(run, calls) for _ in range(max(repetitions // 2, 3)))
    return statistics.median(_device_seconds(run, host_seconds) for _ in range(repetitions)), call_seconds


def _wall(run: Callable[[], Any], calls: int) -> float:
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def _device_seconds(run: Callable[[], Any], host_seconds: float) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda").zero_()
    torch.cuda._sleep(int((2 * host_seconds + 1e-3) * _CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def copy_bandwidth(device: str, repetitions: int, size_bytes: int) -> float:
    """Returns bytes per second of torch's copy on a device, counting bytes read and written.

    Args:
        device: As torch names it.
        repetitions: Over which the median is taken.
        size_bytes: Of what is copied.
    """
    import torch

    source = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds, _ = seconds_of(lambda: target.copy_(source), device, repetitions)
    return 2 * size_bytes / seconds
