"""Measures the utilisation and memory of the GPU ten times a second, with nvidia-ml-py."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_SECONDS_BETWEEN = 0.1


class GpuMeter:
    """Context manager that samples the first visible GPU in a thread; measures nothing if that is not possible.

    Memory is that of the whole GPU, all processes, above what was taken when the meter was made. So it is made before
    anything touches CUDA, and other programs must leave the GPU alone.

    Args:
        device: "gpu" measures, "cpu" does not.
    """

    def __init__(self, device: str) -> None:
        self._library: Any = None
        self._samples: dict[str, list[float]] = {}
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        if device == "gpu":
            with contextlib.suppress(Exception):  # the package, the driver's library or the GPU is missing
                import pynvml

                pynvml.nvmlInit()
                self._handle = _first_visible(pynvml)
                self._memory_before = pynvml.nvmlDeviceGetMemoryInfo(self._handle).used
                self._library = pynvml

    def __enter__(self) -> GpuMeter:
        if self._library is not None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="gpu-meter", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None

    def numbers(self) -> dict[str, float]:
        """Returns mean percentages and peak memory in MiB, as far as the GPU supports them."""
        found = {name: statistics.fmean(values) for name, values in self._samples.items() if values}
        if "gpu_memory_mib" in found:
            found["gpu_memory_mib"] = max(self._samples["gpu_memory_mib"])
        return found

    def _run(self) -> None:
        library, handle = self._library, self._handle
        probes: dict[str, Callable[[], Any]] = {
            "gpu_percent": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu,
            "video_engine_percent": lambda: library.nvmlDeviceGetDecoderUtilization(handle)[0],
            "jpeg_engine_percent": lambda: library.nvmlDeviceGetJpgUtilization(handle)[0],
            "gpu_memory_mib": lambda: (library.nvmlDeviceGetMemoryInfo(handle).used - self._memory_before) / 2**20,
        }
        while not self._end.wait(_SECONDS_BETWEEN):
            for name, probe in probes.items():
                # Older GPUs and drivers do not support all of them.
                with contextlib.suppress(library.NVMLError, AttributeError):
                    self._samples.setdefault(name, []).append(float(probe()))


def _first_visible(library: Any) -> Any:
    """Returns the handle of the GPU that CUDA calls 0 in this process."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    if first.startswith("GPU-"):
        return library.nvmlDeviceGetHandleByUUID(first)
    return library.nvmlDeviceGetHandleByIndex(int(first))
