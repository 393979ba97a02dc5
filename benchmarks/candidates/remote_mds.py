"""MosaicML Streaming, with shards of its own format (MDS). Options: window (its shuffle block, 0 for none), workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.remote_meter import Row, RowMaker, measure_rows, part_of, samples_of
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_transforms

SHARD_BYTES = 1 << 24


def measure(task: Task) -> dict[str, float]:
    import_torchvision_transforms()  # it imports torchvision
    return convert(task) if task.action == "convert" else measure_rows(open_rows, task)


def convert(task: Task) -> dict[str, float]:
    """Writes the samples of the shards in the format of MDS."""
    from streaming import MDSWriter

    part = part_of(task)
    folder = Path(f"{task.dataset}-mds")
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(
        out=str(folder),
        columns={"key": "str", part: "bytes"},
        size_limit=int(task.options.get("shard_bytes", SHARD_BYTES)),
        progress_bar=False,
    ) as writer:
        for sample in samples_of(task):
            writer.write({"key": sample["__key__"], part: sample[part]})
    return {}


def open_rows(task: Task) -> Iterator[list[Row]]:
    """Yields the batches of one epoch, which begins with nothing on the disk."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    clean_stale_shared_memory()
    part, make = part_of(task), RowMaker(task)

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return make(sample["key"], sample[part])

    window = int(task.options.get("window", 0))
    with tempfile.TemporaryDirectory() as folder:
        dataset = Rows(
            remote=f"{task.url}-mds",
            local=folder,
            shuffle=window > 1,
            shuffle_block_size=max(window, 1),
            batch_size=task.batch_size,
            predownload=8 * task.batch_size,
        )
        for stream in dataset.streams:
            # Forked workers would share the connection that fetched the index, and mix up each other's answers.
            stream._downloader.clean_up()
        yield from StreamingDataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=int(task.options.get("workers", 2)),
            collate_fn=list,
        )
