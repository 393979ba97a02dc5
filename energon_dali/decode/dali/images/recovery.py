"""Isolates the images of a batch that DALI cannot decode, so that the other images are decoded.

One bad image fails a whole run, and DALI names at most the first one. A named image is left out and the rest runs
again; one that is not named is searched in small batches. PIL then decides whether each suspect is bad.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from energon_dali.decode.dali.images.graph import ImageBatch
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.failure import NAMED_SAMPLE, first_line, raise_if_device_failed
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome
from energon_dali.errors import DecodeError

_LOG = logging.getLogger(__name__)

SMALL_BATCH = 16
"""Images per run while searching. A file that DALI's parser refuses ends the process in batches of 32 and more; in
batches of up to 28 this was never seen."""
_BYTES_PER_PIXEL = 3
"""Least memory per pixel of a decoded image."""
_MAX_NAMED = 2
"""Runs of a whole batch that may each leave out one named image before the search continues in small batches."""

RunBatch = Callable[[ImageBatch], list[Outcome]]
"""Runs a batch alone and returns its outcomes; raises DALI's RuntimeError."""


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
        batch: The whole batch.
        error: The error of its run.
        run: Runs a batch alone.
        rebuild: Replaces the pipeline after an error that does not name an image.
        finish: Moves a value that PIL decoded to the device of the pipeline's values.
        device: Where the pipeline decodes.

    Raises:
        DeviceFailedError: The device failed.
    """
    outcomes: list[Outcome | None] = [None] * len(batch)

    def give_to_pil(position: int, reason: str) -> None:
        outcomes[position] = decode_by_pil(batch.handles[position], reason, finish)

    def search(positions: list[int], problem: BaseException | None, budget: int) -> None:
        """Decodes some positions. `problem` is the error of their last run, `budget` how many more may be named."""
        while positions:
            if problem is None:
                try:
                    made = run(batch.select(positions))
                except Exception as caught:
                    problem = caught
                else:
                    for position, outcome in zip(positions, made, strict=True):
                        outcomes[position] = outcome
                    return
            pixels = sum(batch.handles[position].width * batch.handles[position].height for position in positions)
            raise_if_device_failed(problem, device, needed_bytes=_BYTES_PER_PIXEL * pixels)
            found = NAMED_SAMPLE.search(str(problem))
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
        # Halved below the safe size, where an unnamed failure costs a few short runs.
        step = SMALL_BATCH if len(positions) > SMALL_BATCH else (len(positions) + 1) // 2
        for first in range(0, len(positions), step):
            search(positions[first : first + step], None, step)

    search(list(range(len(batch))), error, _MAX_NAMED)
    return [outcome for outcome in outcomes if outcome is not None]


def decode_by_pil(handle: MediaHandle, reason: str, finish: Callable[[Any], Any]) -> Outcome:
    """Returns the outcome of an image that PIL decodes in place of DALI.

    Args:
        handle: The image.
        reason: Why DALI's pixels could not be used, for the log.
        finish: Moves the value to the device of the others.
    """
    try:
        return Decoded(finish(handle.decode()), "fallback")
    except DecodeError as error:
        _LOG.debug("%r: DALI says %r, PIL says %r", handle, reason, error.reason)
        return DecodeFailure(error.reason, error.format or handle.format, error.route or "pil", handle.source)
