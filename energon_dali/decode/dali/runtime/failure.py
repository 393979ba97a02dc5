"""Tells a bad file from a failed device: DALI raises the same RuntimeError for both."""

from __future__ import annotations

import re

from energon_dali.decode.dali.runtime.device import Device, device_works
from energon_dali.errors import DeviceFailedError

NAMED_SAMPLE = re.compile(r"Failed to decode sample #(\d+)")
"""How DALI names the one image, by its place in the run, that it could not decode."""
_DEVICE = re.compile(r"cuda|out of memory|nvml|driver|NVJPEG_STATUS_(?:ALLOCATOR|EXECUTION|INTERNAL)", re.IGNORECASE)


def raise_if_device_failed(error: BaseException, device: Device) -> None:
    """Returns nothing if an error can be due to a bad image.

    Args:
        error: What DALI raised.
        device: Where it decoded. A GPU is asked whether it still works: if it does not, DALI blames an image.

    Raises:
        DeviceFailedError: The device failed or its memory is full: no other image would do better.
    """
    text = str(error).rpartition("encountered:")[2]  # what stands before names files and operators
    named = NAMED_SAMPLE.search(text) is not None
    lost = not isinstance(error, RuntimeError | MemoryError) or (_DEVICE.search(text) is not None and not named)
    if lost or not device_works(device):
        raise DeviceFailedError(
            f"DALI failed on {device} while decoding images: {first_line(error)}. This is no fault of a sample, so "
            "nothing was skipped. If memory is short give a smaller gpu_memory_budget_bytes or smaller blocks; after "
            "other CUDA errors the process must be started again."
        ) from error


def first_line(error: BaseException) -> str:
    """Returns what DALI says an error is, without the trace of the pipeline's definition around it."""
    text = str(error).rpartition("encountered:")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Current pipeline", "Critical error", "Stacktrace"))]
    return re.sub(r"^\[[^\]]*\]\s*", "", (telling or [type(error).__name__])[0])[:300]
