"""Distinguishes a bad file from a failed device, for both of which DALI raises the same RuntimeError."""

from __future__ import annotations

import re
from contextlib import suppress

from energon_dali.decode.dali.runtime.blocks import has_room
from energon_dali.decode.dali.runtime.device import Device, Media, device_works
from energon_dali.errors import DeviceFailedError

NAMED_SAMPLE = re.compile(r"Failed to decode sample #(\d+)")
"""How DALI names the one image that it could not decode, by its position in the run."""
_MEMORY = re.compile(
    r"out of memory|bad_alloc|can't allocate|failed to allocate|allocation failed|MemoryAllocation|OUT_OF_MEMORY"
    r"|ALLOCATOR_FAILURE",
    re.IGNORECASE,
)
"""Messages of DALI, nvImageCodec, nvJPEG, NVDEC and CUDA when memory is full."""
_DEVICE = re.compile(r"cuda|nvml|driver|NVJPEG_STATUS_(?:EXECUTION|INTERNAL)", re.IGNORECASE)
_ADVICE: dict[Media, str] = {"image": "smaller blocks", "video": "smaller blocks or shorter clips"}


def raise_if_device_failed(
    error: BaseException, device: Device, media: Media = "image", needed_bytes: int = 0, *, library: str = "DALI"
) -> None:
    """Raises if the device failed or its memory is full; returns if a bad file can have caused the error.

    Args:
        error: The error that the library raised.
        device: Where it decoded. A GPU is asked whether it still works and has room; where it does not, DALI blames a
            file.
        media: What was decoded. For videos, CUDA's words in a message prove nothing: NVDEC reports bad streams as CUDA
            errors too.
        needed_bytes: Memory that the run takes on a GPU.
        library: What decoded, for the message.

    Raises:
        DeviceFailedError: The device failed or its memory is full, so every other file would fail as well.
    """
    text = str(error)
    said = text.rpartition("encountered:")[2]  # the text before it names files and operators
    full = isinstance(error, MemoryError) or _MEMORY.search(said) is not None
    # On the CPU an image that is too large for the host's memory is a bad image, which PIL then tries.
    if full and media == "image" and device.kind == "cpu":
        full = "out of memory" in said.lower()
    failed = not isinstance(error, RuntimeError | MemoryError)
    if media == "image" and NAMED_SAMPLE.search(said) is None:
        failed = failed or _DEVICE.search(said) is not None
    if not (full or failed) and device.kind == "gpu":
        failed = not device_works(device)
        full = not failed and not has_room(device, needed_bytes)
    if full or failed:
        reason = f"there is no room for a run of {max(1, needed_bytes >> 20)} MiB; {library} says: " if full else ""
        raise DeviceFailedError(
            f"{library} failed on {device} while decoding {media}s: {reason}{first_line(error)}. "
            f"{_free_memory(device)}No sample caused this, so nothing was skipped. If memory is short, give a smaller "
            f"gpu_memory_budget_bytes or {_ADVICE[media]}; after other CUDA errors, start the process again."
        ) from error


def first_line(error: BaseException) -> str:
    """Returns the line of DALI's message that names the error, without the trace of the pipeline's definition."""
    text = str(error).rpartition("encountered:")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Current pipeline", "Critical error", "Stacktrace"))]
    return re.sub(r"^\[[^\]]*\]\s*", "", (telling or [type(error).__name__])[0])[:300]


def _free_memory(device: Device) -> str:
    """Returns a sentence on the free memory of a GPU; "" for the CPU, and for a GPU that does not answer."""
    with suppress(Exception):
        if device.kind == "gpu":
            import torch

            free, total = torch.cuda.mem_get_info(device.ordinal)
            return f"{free >> 20} of {total >> 20} MiB are free there. "
    return ""
