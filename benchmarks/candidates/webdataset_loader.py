"""webdataset and torch's DataLoader, decoding with Pillow in worker processes.

Options: workers; decode ("torchvision" for its fast path in place of Pillow).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.candidates.fast_path import CollateRows, DecodeRow
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_io


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def as_list(samples: list[Any]) -> tuple[list[Any], ...]:
    """Returns the fields of a batch as lists, because images differ in size."""
    return tuple(list(field) for field in zip(*samples, strict=True))


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches of uint8 CHW tensors, or what torchvision makes of them."""
    loader: DataLoader[Any] = DataLoader(
        _decoded_by_torchvision(task) if task.options.get("decode") == "torchvision" else _decoded_by_pil(task),
        batch_size=None,
        num_workers=int(task.options.get("workers", 2)),
        persistent_workers=True,
    )
    while True:
        for keys, images in loader:
            yield Delivered(images, keys if with_keys else None)


def _decoded_by_pil(task: Task) -> Any:
    import webdataset

    return (
        webdataset.WebDataset(task.shards, shardshuffle=False)
        .decode("torchrgb8", only=["jpg"])
        .to_tuple("__key__", "jpg")
        .batched(task.batch_size, collation_fn=as_list)
    )


def _decoded_by_torchvision(task: Task) -> Any:
    import webdataset

    import_torchvision_io()  # once, before the workers
    return (
        webdataset.WebDataset(task.shards, shardshuffle=False)
        .to_tuple("__key__", "jpg")
        .map(DecodeRow(task))
        .batched(task.batch_size, collation_fn=CollateRows(task.output))
    )
