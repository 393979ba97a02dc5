"""Small samples through the loaders that build on torch's DataLoader: LitData, MosaicML Streaming, webdataset.

Options: library ("litdata", "mds" or "webdataset"), workers, window (of webdataset's buffer, and of MosaicML's shuffle
block; LitData has none: it shuffles chunks, and samples in them). LitData and MosaicML read formats of their own.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.small_rows import Batch, collated, decoded, measure_smalls, part_of, samples_of
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_transforms

CHUNK_BYTES = 1 << 20
"""Of the option chunk_bytes, for LitData and MosaicML."""


def measure(task: Task) -> dict[str, float]:
    if task.options["library"] != "webdataset":
        import_torchvision_transforms()  # both import torchvision
    return convert(task) if task.action == "convert" else measure_smalls(open_batches, task)


def convert(task: Task) -> dict[str, float]:
    """Writes the samples of the shards in the format of the library: records as it stores them, images as PNGs."""
    folder = Path(f"{task.dataset}-{task.options['library']}")
    shutil.rmtree(folder, ignore_errors=True)
    part = part_of(task)
    rows = ((key, content if part == "png" else decoded(part, content)) for key, content in samples_of(task))
    if task.options["library"] == "mds":
        from streaming import MDSWriter

        columns = {"key": "str", "value": {"json": "json", "txt": "str", "png": "bytes"}[part]}
        with MDSWriter(
            out=str(folder),
            columns=columns,
            size_limit=int(task.options.get("chunk_bytes", CHUNK_BYTES)),
            progress_bar=False,
        ) as writer:
            for key, value in rows:
                writer.write({"key": key, "value": value})
        return {}
    from litdata.streaming.writer import BinaryWriter

    chunks = BinaryWriter(str(folder), chunk_bytes=int(task.options.get("chunk_bytes", CHUNK_BYTES)))
    for number, (key, value) in enumerate(rows):
        chunks[number] = {"key": key, "value": value}
    chunks.done()
    chunks.merge()
    return {}


def open_batches(task: Task) -> Iterator[Batch]:
    """Yields batches of one epoch after the other."""
    loader = {"mds": _mds, "litdata": _litdata, "webdataset": _webdataset}[task.options["library"]](task)
    while True:
        yield from loader


def _row(part: str, sample: dict[str, Any]) -> tuple[str, Any]:
    value = sample["value"]
    return sample["key"], decoded(part, value) if part == "png" else value


def _mds(task: Task) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    part = part_of(task)

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return _row(part, super().__getitem__(index))

    dataset = Rows(
        local=f"{task.dataset}-mds",
        shuffle=True,
        shuffle_block_size=int(task.options["window"]),
        batch_size=task.batch_size,
    )
    return StreamingDataLoader(dataset, collate_fn=collated, **_options(task))


def _litdata(task: Task) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    part = part_of(task)

    class Rows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return _row(part, super().__getitem__(index))

    dataset = Rows(f"{task.dataset}-litdata", shuffle=True)
    return StreamingDataLoader(dataset, collate_fn=collated, **_options(task))


def _webdataset(task: Task) -> Any:
    import webdataset
    from torch.utils.data import DataLoader

    part = part_of(task)
    dataset = webdataset.WebDataset(task.shards, shardshuffle=len(task.shards), seed=0).shuffle(task.options["window"])
    dataset = dataset.map(functools.partial(_webdataset_row, part)).batched(task.batch_size, collation_fn=collated)
    return DataLoader(dataset, **{**_options(task), "batch_size": None})


def _webdataset_row(part: str, sample: dict[str, Any]) -> tuple[str, Any]:
    return sample["__key__"], decoded(part, sample[part])


def _options(task: Task) -> dict[str, Any]:
    workers = int(task.options["workers"])
    return {"batch_size": task.batch_size, "num_workers": workers, "persistent_workers": workers > 0}
