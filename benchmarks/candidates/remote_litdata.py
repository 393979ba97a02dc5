"""LitData, with chunks of its own format. Options: shuffle (it has no window: chunks, and samples in them), workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.remote_meter import Row, RowMaker, measure_rows, part_of, samples_of
from benchmarks.candidates.task import Task

CHUNK_BYTES = 1 << 24
"""Of the option chunk_bytes."""


def measure(task: Task) -> dict[str, float]:
    return convert(task) if task.action == "convert" else measure_rows(open_rows, task)


def convert(task: Task) -> dict[str, float]:
    """Writes the samples of the shards as chunks of LitData."""
    from litdata.streaming.writer import BinaryWriter

    part = part_of(task)
    folder = Path(f"{task.dataset}-litdata")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes=int(task.options.get("chunk_bytes", CHUNK_BYTES)))
    for number, sample in enumerate(samples_of(task)):
        writer[number] = {"key": sample["__key__"], part: sample[part]}
    writer.done()
    writer.merge()
    return {}


def open_rows(task: Task) -> Iterator[list[Row]]:
    """Yields the batches of one epoch, which begins with nothing on the disk."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # Its workers read with obstore, which refuses http:// without allow_http. LitData has no option for it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    part, make = part_of(task), RowMaker(task)

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return make(sample["key"], sample[part])

    with tempfile.TemporaryDirectory() as folder:
        dataset = Rows(
            input_dir=f"{task.url}-litdata",
            cache_dir=folder,
            shuffle=bool(task.options.get("shuffle", False)),
            drop_last=False,
            storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        )
        yield from StreamingDataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=int(task.options.get("workers", 2)),
            collate_fn=list,
        )
