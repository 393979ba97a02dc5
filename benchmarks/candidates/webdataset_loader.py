"""webdataset and torch's DataLoader, decoding with Pillow in worker processes. Option: workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def as_list(samples: list[Any]) -> tuple[list[Any], ...]:
    """Returns the fields of a batch as lists, because images differ in size."""
    return tuple(list(field) for field in zip(*samples, strict=True))


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches of uint8 CHW tensors."""
    import webdataset
    from torch.utils.data import DataLoader

    fields = ("__key__", "jpg") if with_keys else ("jpg",)
    dataset = (
        webdataset.WebDataset(task.shards, shardshuffle=False)
        .decode("torchrgb8", only=["jpg"])
        .to_tuple(*fields)
        .batched(task.batch_size, collation_fn=as_list)
    )
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=int(task.options.get("workers", 2)), persistent_workers=True
    )
    while True:
        for batch in loader:
            yield Delivered(batch[-1], batch[0] if with_keys else None)
