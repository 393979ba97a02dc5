"""The bare ceiling: DALI decodes the same files from memory to the same output, and does nothing else.

Options: layout, threads, device, unchecked. It decodes for the output "vision", and renders nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.bare_graph import as_output, decode_images, decode_videos, make_pipeline
from benchmarks.candidates.files import frames_in, read_media
from benchmarks.candidates.outputs import VIDEO_OUTPUTS, frame_numbers
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    # With "unchecked" its pixels may be wrong: DALI confuses the hardware decoders of videos of different sizes.
    if task.options.get("unchecked") or task.output == "vision":
        task = dataclasses.replace(task, action="time")
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches: torch views of DALI's own memory, without a copy."""
    backend: Any = importlib.import_module("nvidia.dali.backend")
    files = read_media(task)
    # One list of views per batch, created once, so that delivery costs almost nothing.
    batches = [[backend.TensorCPU(data, "") for _, data in some] for some in _batched(files, task.batch_size)]
    keys = [[key for key, _ in some] for some in _batched(files, task.batch_size)]
    turns = itertools.cycle(batches)

    def define(fn: Any) -> Any:
        types: Any = importlib.import_module("nvidia.dali.types")
        encoded = fn.external_source(
            source=lambda: backend.TensorListCPU(next(turns), contiguous=False),
            batch=True,
            no_copy=True,
            dtype=types.UINT8,
            ndim=1,
        )
        if task.output in VIDEO_OUTPUTS:
            return decode_videos(encoded, frame_numbers(next(iter(frames_in(task).values()))), task)
        return decode_images(encoded, task)

    pipeline = make_pipeline(define, task)
    pipeline.build()
    for names in itertools.cycle(keys):
        (pixels,) = pipeline.run()
        yield Delivered(as_output(pixels, task), names if with_keys else None)


def _batched(files: list[tuple[str, bytes]], size: int) -> Iterator[list[tuple[str, bytes]]]:
    """Yields the files in batches of equal size; the last batch wraps around."""
    for first in range(0, len(files), size):
        some = files[first : first + size]
        yield some + [files[place % len(files)] for place in range(size - len(some))]
