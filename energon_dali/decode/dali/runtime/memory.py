"""Limits and counts the memory that decoding takes on a device, and returns it to the device."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.library import load_backend
from energon_dali.shards.storage.reused_buffers import ReusedBuffers

_CPU_RUN_BYTES = 1 << 30
"""Largest run on the CPU: 64 images of 5 megapixels as RGB."""
_RUNS_PER_BUDGET = 4
"""A run takes at most this part of a budget, so that two runs of two engines fit."""
_GPU_BUDGET_BYTES = 8 << 30
"""Default budget of a GPU."""
_WORKSPACE_BYTES = 32 << 20
"""Memory of the decoders themselves when `has_room` looks for room; a low guess, as it was not measured."""
RESULT_BYTES = 256 << 20
"""Most memory of results on the CPU that is used again."""
RESULTS = ReusedBuffers(RESULT_BYTES)
"""That memory."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory that decoding takes on one device, estimated from image sizes, without the decoders' own workspace."""

    budget_bytes: int | None
    """Limit of all runs in flight together; None means no limit."""
    in_flight_bytes: int
    """Memory of the runs in flight now."""
    in_flight_peak_bytes: int
    """The most memory that runs in flight took together."""
    largest_output_bytes: int
    """The largest output of one run."""


class DeviceMemory:
    """The memory budget that the runs of all engines of a device share; engines' threads wait for it.

    Args:
        device: The device.
        budget_bytes: Most memory of all runs in flight together. None is 8 GiB on a GPU. On the CPU it means no limit,
            but a run takes 1 GiB at most. A single image that needs more runs alone.
    """

    def __init__(self, device: Device, budget_bytes: int | None = None) -> None:
        if budget_bytes is None and device.kind == "gpu":
            budget_bytes = _GPU_BUDGET_BYTES
        self.device = device
        self.budget_bytes = budget_bytes
        self.run_bytes = _CPU_RUN_BYTES if budget_bytes is None else max(1, budget_bytes // _RUNS_PER_BUDGET)
        self._free = threading.Condition()
        self._in_flight = 0
        self._in_flight_peak = 0
        self._largest_output = 0

    def acquire(self, run_bytes: int, *, wait: bool) -> bool:
        """Reserves memory for a run and returns True if it fits into the budget, or if nothing is in flight.

        Args:
            run_bytes: Memory of the run.
            wait: Whether to wait until it fits. An engine with runs in flight must not: it has to take their outputs
                first.
        """
        with self._free:
            if self.budget_bytes is not None and not self._fits(run_bytes):
                if not wait:
                    return False
                self._free.wait_for(lambda: self._fits(run_bytes))
            self._in_flight += run_bytes
            self._in_flight_peak = max(self._in_flight_peak, self._in_flight)
            return True

    def _fits(self, run_bytes: int) -> bool:
        assert self.budget_bytes is not None
        return self._in_flight == 0 or self._in_flight + run_bytes <= self.budget_bytes

    def release_run(self, run_bytes: int) -> None:
        """Releases the memory of a run that ended."""
        with self._free:
            self._in_flight -= run_bytes
            self._free.notify_all()

    def count(self, output_bytes: int) -> None:
        """Records the size of a run's output."""
        if output_bytes > self._largest_output:
            self._largest_output = output_bytes

    def use(self) -> MemoryUse:
        """Returns the current use and the peaks."""
        with self._free:
            return MemoryUse(self.budget_bytes, self._in_flight, self._in_flight_peak, self._largest_output)


def count_bytes(images: Any) -> int:
    """Returns the number of bytes that a TensorList holds."""
    itemsize = {"UINT8": 1, "FLOAT16": 2, "FLOAT": 4}[images.dtype.name]
    shapes: list[tuple[int, ...]] = images.shape()
    if images.is_dense_tensor():
        return len(shapes) * math.prod(shapes[0]) * itemsize
    return sum(map(math.prod, shapes)) * itemsize


def has_room(device: Device, needed_bytes: int) -> bool:
    """Returns whether DALI finds memory for a run on a GPU, in its own pool or by allocating more from the device.

    DALI keeps what it allocates for later runs. Always True on the CPU.

    Args:
        device: The device.
        needed_bytes: Memory of the run, without the decoders' own workspace.
    """
    if device.kind == "cpu":
        return True
    try:
        load_backend().PreallocateDeviceMemory(needed_bytes + _WORKSPACE_BYTES, device.ordinal)
    except (RuntimeError, MemoryError):
        return False
    return True


def release_unused() -> None:
    """Returns the memory that is kept for later runs to the devices; values that are still held stay valid."""
    RESULTS.clear()
    load_backend().ReleaseUnusedMemory()
