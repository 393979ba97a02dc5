"""Small samples through Grain, from ArrayRecord files.

Options: workers, leaves (datasets that are mixed), threads and buffer (see `peer_grain.read_options`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.peer_grain import read_options
from benchmarks.candidates.small_rows import Batch, collated, decoded, measure_smalls, part_of, samples_in
from benchmarks.candidates.task import Task

_KEY_BYTES = 7


def measure(task: Task) -> dict[str, float]:
    return convert(task) if task.action == "convert" else measure_smalls(open_batches, task)


def convert(task: Task) -> dict[str, float]:
    """Writes one ArrayRecord file per shard, in which each record is compressed alone, for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder = Path(f"{task.dataset}-arrayrecord")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for shard in task.shards:
        writer = ArrayRecordWriter(str(folder / f"{Path(shard).stem}.array_record"), "group_size:1")
        for key, content in samples_in(shard):
            writer.write(key.encode() + content)
        writer.close()
    return {}


class Decode:
    """Returns the key and the value of a record."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __call__(self, record: bytes) -> tuple[str, Any]:
        return record[:_KEY_BYTES].decode(), decoded(self._part, record[_KEY_BYTES:])


def open_batches(task: Task) -> Iterator[Batch]:
    """Yields the batches of an endless pipeline."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain's workers look at flags
        flags.FLAGS(["benchmark"])
    files = sorted(str(path) for path in Path(f"{task.dataset}-arrayrecord").glob("*.array_record"))
    if int(task.options.get("leaves", 1)) > 1:
        members = [_source(grain, [file]).seed(number).shuffle().repeat() for number, file in enumerate(files)]
        rows = grain.MapDataset.mix(members)
    else:
        rows = _source(grain, files).seed(0).shuffle().repeat()
    rows = rows.map(Decode(part_of(task)))
    batches = rows.to_iter_dataset(read_options(task)).batch(task.batch_size, batch_fn=collated)
    workers = int(task.options["workers"])
    if workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    yield from batches


def _source(grain: Any, files: list[str]) -> Any:
    return grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
