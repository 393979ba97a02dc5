"""Grain over the extents of the shards, decoding with torchvision in its worker processes.

Options: workers, threads and buffer (of its `ReadOptions` in each worker; the defaults are Grain's).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.fast_path import CollateRows, DecodeRow, as_tensors, make_decode
from benchmarks.candidates.files import locate_media
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_io


def measure(task: Task) -> dict[str, float]:
    import_torchvision_io()  # it says so if it cannot
    return measure_stream(open_stream, task)


_IMPORTING = threading.Lock()


class DecodeInThreads(DecodeRow):
    """Decodes in the threads of a worker. The first one imports torchvision, which fails if two do so at once."""

    def __call__(self, row: tuple[str, bytes]) -> tuple[str, Any]:
        """Returns (key, image) of (key, encoded image)."""
        if self._decode is None:
            with _IMPORTING:
                self._decode = self._decode or make_decode(self._task)
        return super().__call__(row)


class Images:
    """The encoded images by number, read on demand.

    Args:
        task: The task.
    """

    def __init__(self, task: Task) -> None:
        self._places = locate_media(task)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        shard, offset, size, key = self._places[number]
        file = os.open(shard, os.O_RDONLY)
        try:
            return key, os.pread(file, size, offset)
        finally:
            os.close(file)


def read_options(task: Task) -> Any:
    """Returns the threads and the buffer of each worker of a task; Grain's defaults where it names none."""
    import grain

    named = {"num_threads": task.options.get("threads"), "prefetch_buffer_size": task.options.get("buffer")}
    return grain.ReadOptions(**{name: int(value) for name, value in named.items() if value is not None})


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches. Worker processes send NumPy arrays through shared memory."""
    import grain

    rows: Any = (
        grain.MapDataset.source(Images(task))
        .repeat()
        .map(DecodeInThreads(task, as_array=True))
        .to_iter_dataset(read_options(task))
        .batch(task.batch_size, drop_remainder=True, batch_fn=CollateRows(task.output))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=int(task.options.get("workers", 2))))
    )
    for keys, images in rows:
        yield Delivered(as_tensors(images), keys if with_keys else None)
