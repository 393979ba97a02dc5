"""Isolates the images of a batch that DALI cannot decode, so that their neighbours lose nothing.

DALI ends a whole run for one bad image and names the first one at best. What is named is left out and the rest runs
again; what is not named is narrowed down in small batches. PIL has the last word on each suspect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from energon_dali.decode.dali.device import Device, device_works
from energon_dali.decode.dali.feed import ImageBatch
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.errors import DecodeError, DeviceFailedError

_LOG = logging.getLogger(__name__)

SMALL_BATCH = 16
"""Images per run while searching. A file that DALI's parser refuses ends the process in batches of 32 and more, and
was never seen to do so in batches of up to 28."""
_MAX_NAMED = 2
"""Runs of a whole batch that may each give up one image, before the search goes on in small batches."""
_NAMED = re.compile(r"Failed to decode sample #(\d+)")
_DEVICE = re.compile(r"cuda|out of memory|nvml|driver|NVJPEG_STATUS_(?:ALLOCATOR|EXECUTION|INTERNAL)", re.IGNORECASE)

RunBatch = Callable[[ImageBatch], list[Any]]
"""Runs a batch alone and returns its values; raises RuntimeError as DALI does."""


def raise_if_device_failed(error: BaseException, device: Device) -> None:
    """Returns nothing if an error can be due to a bad image.

    Args:
        error: What DALI raised.
        device: Where it decoded. A GPU is asked whether it still works: if it does not, DALI blames an image.

    Raises:
        DeviceFailedError: The device failed or its memory is full: no other image would do better.
    """
    text = str(error).rpartition("encountered:")[2]  # what stands before names files and operators
    named = _NAMED.search(text) is not None
    lost = not isinstance(error, RuntimeError | MemoryError) or (_DEVICE.search(text) is not None and not named)
    if lost or not device_works(device):
        raise DeviceFailedError(
            f"DALI failed on {device} while decoding images: {first_line(error)}. This is no fault of a sample, so "
            "nothing was skipped. If memory is short give a smaller gpu_memory_budget_bytes or smaller blocks; after "
            "other CUDA errors the process must be started again."
        ) from error


def decode_suspects(
    batch: ImageBatch,
    error: BaseException,
    run: RunBatch,
    rebuild: Callable[[], None],
    finish: Callable[[Any], Any],
    device: Device,
) -> list[Outcome]:
    """Returns one outcome per image of a batch whose run failed.

    Args:
        batch: The batch, in full.
        error: What its run raised.
        run: Runs a batch alone.
        rebuild: Replaces the pipeline, after an error that names no image.
        finish: Brings a value that PIL decoded to where the pipeline's values are.
        device: Where it decodes.

    Raises:
        DeviceFailedError: The device failed.
    """
    outcomes: list[Outcome | None] = [None] * len(batch)
    route = "dali-gpu" if device.kind == "gpu" else "dali-cpu"

    def give_to_pil(position: int, reason: str) -> None:
        outcomes[position] = _decode_by_pil(batch.handles[position], reason, finish)

    def search(positions: list[int], problem: BaseException | None, budget: int) -> None:
        """Decodes some positions; `problem` is how their last run failed, `budget` how many more may be named."""
        while positions:
            if problem is None:
                try:
                    values = run(batch.select(positions))
                except Exception as caught:
                    problem = caught
                else:
                    for position, value in zip(positions, values, strict=True):
                        outcomes[position] = Decoded(value, route)  # type: ignore[arg-type]
                    return
            raise_if_device_failed(problem, device)
            found = _NAMED.search(str(problem))
            if found is None:
                rebuild()
            elif int(found[1]) < len(positions) and budget > 0:
                give_to_pil(positions.pop(int(found[1])), first_line(problem))
                problem, budget = None, budget - 1
                continue
            narrow(positions, problem)
            return

    def narrow(positions: list[int], problem: BaseException) -> None:
        if len(positions) == 1:
            give_to_pil(positions[0], first_line(problem))
            return
        # Halves below the safe size: an unnamed failure in them costs a few short runs.
        step = SMALL_BATCH if len(positions) > SMALL_BATCH else (len(positions) + 1) // 2
        for first in range(0, len(positions), step):
            search(positions[first : first + step], None, step)

    search(list(range(len(batch))), error, _MAX_NAMED)
    return [outcome for outcome in outcomes if outcome is not None]


def first_line(error: BaseException) -> str:
    """Returns what DALI says an error is, without the trace of the pipeline's definition around it."""
    text = str(error).rpartition("encountered:")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Current pipeline", "Critical error", "Stacktrace"))]
    return re.sub(r"^\[[^\]]*\]\s*", "", (telling or [type(error).__name__])[0])[:300]


def _decode_by_pil(handle: MediaHandle, reason: str, finish: Callable[[Any], Any]) -> Outcome:
    try:
        return Decoded(finish(handle.decode()), "fallback")
    except DecodeError as error:
        _LOG.debug("%r: DALI says %r, PIL says %r", handle, reason, error.reason)
        return DecodeFailure(error.reason, error.format or handle.format, error.route or "pil", handle.source)
