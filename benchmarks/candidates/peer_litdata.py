"""LitData on the local disk, with chunks of its own format, decoding with torchvision. Option: workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.fast_path import CollateRows, DecodeRow
from benchmarks.candidates.remote_litdata import convert
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_io


def measure(task: Task) -> dict[str, float]:
    import_torchvision_io()  # before LitData imports torchvision
    return convert(task) if task.action == "convert" else measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches, epoch after epoch."""
    from litdata import StreamingDataLoader, StreamingDataset

    decode = DecodeRow(task)

    class Images(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return decode((sample["key"], sample["jpg"]))

    loader: Any = StreamingDataLoader(
        Images(input_dir=f"{task.dataset}-litdata", shuffle=False, drop_last=False),
        batch_size=task.batch_size,
        num_workers=int(task.options.get("workers", 2)),
        collate_fn=CollateRows(task.output),
        persistent_workers=True,
    )
    while True:
        for keys, images in loader:
            yield Delivered(images, keys if with_keys else None)
