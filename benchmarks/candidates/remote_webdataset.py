"""webdataset over http, through the `curl` that it starts for each shard. Options: window (0 for none), workers."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.remote_meter import Row, RowMaker, measure_rows, part_of
from benchmarks.candidates.task import LeftOutError, Task


def measure(task: Task) -> dict[str, float]:
    return measure_rows(open_rows, task)


def open_rows(task: Task) -> Iterator[list[Row]]:
    """Yields batches without end.

    Raises:
        LeftOutError: There is no curl.
    """
    import webdataset
    from torch.utils.data import DataLoader

    if shutil.which("curl") is None:
        raise LeftOutError("webdataset reads http with the program curl, which is not installed")
    root = task.url.replace("s3://", f"{os.environ['AWS_ENDPOINT_URL']}/", 1)
    urls = [f"{root}/{os.path.basename(path)}" for path in task.shards]
    window = int(task.options.get("window", 0))
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls) if window > 1 else False, seed=0)
    if window > 1:
        dataset = dataset.shuffle(window)
    make = functools.partial(_row, part=part_of(task), make=RowMaker(task))
    dataset = dataset.map(make).batched(task.batch_size, collation_fn=list)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=int(task.options.get("workers", 2)), persistent_workers=True
    )
    while True:
        yield from loader


def _row(sample: dict[str, Any], part: str, make: RowMaker) -> Row:
    return make(sample["__key__"], sample[part])
