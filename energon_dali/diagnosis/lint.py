"""Checks all datasets that a path names, or one process's share of their shards.

The index of each shard is compared with its tar, and every sample is read and decoded as a loader would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from energon_dali.assembly.datasets import get_val_datasets
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import Decoder, SampleDecoder
from energon_dali.decode.interface import check_media
from energon_dali.diagnosis.step_plan import uncooked_encoder
from energon_dali.errors import DatasetError, EnergonDaliError
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.shards import RawSample, ShardExtents, ShardReader, WebdatasetFolder
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.index.tar_index import read_tar_index
from energon_dali.shards.meta.document import META
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, index_shard
from energon_dali.worker_config import WorkerConfig

BLOCK = 32
"""Samples that are read and decoded together."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One error in a dataset."""

    shard: str
    """Name of the shard."""
    key: str
    """Key of the sample; "" if the shard as a whole is wrong."""
    reason: str
    """What is wrong, in one line."""

    def __str__(self) -> str:
        return f"  {self.shard}  {self.key}  {self.reason}" if self.key else f"  {self.shard}  {self.reason}"


def reason_of(error: Exception) -> str:
    """Returns an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check_index(folder: WebdatasetFolder, number: int) -> Iterator[Flaw]:
    """Yields the differences between the indices of a shard and its tar: counts, offsets, keys, parts.

    Args:
        folder: The dataset.
        number: Number of the shard.
    """
    name = folder.shard_names[number]
    scan = index_shard(ShardJob(folder.root), name)
    if scan.error:
        yield Flaw(name, "", scan.error)
        return
    if scan.num_samples != folder.shard_counts[number]:
        yield Flaw(name, "", f".info.json says {folder.shard_counts[number]} samples, the tar has {scan.num_samples}")
    try:
        # The first entry is not compared: readers assume that the first sample is at the start of the file.
        if read_tar_index(folder.root, name)[1:].tolist() != scan.starts[1:]:
            yield Flaw(name, "", f"the offsets in {name}.idx differ from those of the tar")
        yield from _compare(folder.index.source, folder.index.shard(number), scan)
        sqlite = folder.root / META / SQLITE_NAME
        if sqlite.is_local and sqlite.is_file() and folder.index.source != "sqlite":
            tables = SqliteIndex(sqlite.local)
            try:
                if tables.has_parts:
                    yield from _compare(SQLITE_NAME, tables.shard(number, name), scan)
            finally:
                tables.close()
    except EnergonDaliError as error:
        yield Flaw(name, "", reason_of(error))


def _compare(index: str, known: ShardExtents, scan: ShardScan) -> Iterator[Flaw]:
    """Yields the first sample for which an index is wrong."""
    found = scan.extents
    for listed, true in zip_longest(range(known.num_samples), range(found.num_samples)):
        if listed is None or true is None:
            yield Flaw(scan.shard, "", f"{index} has {known.num_samples} samples, the tar has {found.num_samples}")
            return
        if known.key(listed) != found.key(true):
            yield Flaw(scan.shard, found.key(true), f"{index} has the key {known.key(listed)!r} instead")
            return
        if sorted(known.parts(listed)) != sorted(found.parts(true)):
            yield Flaw(scan.shard, found.key(true), f"{index} has other offsets for its parts than the tar")
            return


def check_samples(source: Source, shard: int, numbers: range) -> Iterator[Flaw]:
    """Yields the samples that cannot be read, built or decoded.

    Args:
        source: The dataset, with the decoder of its task encoder.
        shard: Number of a shard.
        numbers: Numbers of samples in it.
    """
    for start in range(numbers.start, numbers.stop, BLOCK):
        block = range(start, min(start + BLOCK, numbers.stop))
        raws: list[RawSample] = []
        samples: list[Any] = []
        for number, raw in zip(block, source.reader.read([shard] * len(block), block), strict=True):
            if isinstance(raw, DatasetError):
                yield Flaw(*source.reader.name(shard, number), reason_of(raw))
                continue
            try:
                index = source.reader.index_of(shard, number)
                (seed,) = source.load.seeds(np.zeros(1, np.int64), np.array([index], np.int64))
                samples.append(source.load(raw, seed))
                raws.append(raw)
            except Exception as error:  # the dataset's own code and codecs may raise anything
                yield Flaw(raw.shard, raw.key, reason_of(error))
        for raw, sample in zip(raws, _decoded(source.load.decoder, samples), strict=True):
            try:
                if isinstance(sample, Exception):
                    raise sample
                check_media(sample)
            except Exception as error:
                yield Flaw(raw.shard, raw.key, reason_of(error))


def _decoded(decoder: Decoder | None, samples: list[Any]) -> list[Any]:
    """Returns the samples, with the media decoded that a decoder in the rank decodes in blocks."""
    return samples if decoder is None else decode_elements(decoder, samples)


@dataclass(frozen=True)
class LintJob:
    """What to check; picklable."""

    path: str
    """A prepared folder, a metadataset or a JSONL file."""
    parts: tuple[str, ...]
    """Parts of the split."""
    decoder: str
    """"pil" or "dali"."""
    options: dict[str, Any]
    """Keyword arguments of `get_val_datasets`."""
    shares: int
    """Number of processes."""


@dataclass
class Report:
    """The errors found in one dataset, or in one part of its split."""

    name: str
    """The name that is printed."""
    num_samples: int | None = None
    """Samples that were checked; None for an index."""
    flaws: list[Flaw] = field(default_factory=list)
    """What is wrong."""


def run_share(job: LintJob, share: int) -> list[Report]:
    """Returns the reports of one process, which checks every `shares`-th shard.

    Raises:
        ConfigError: There is no such part of the split.
        DatasetError: A dataset cannot be opened.
        StorageError: A file cannot be read.
    """
    opened = [(part, source) for part in job.parts for source in _sources(job, part)]
    reports = []
    for folder in _folders([source for _, source in opened]):
        report = Report(f"{folder.path}, index")
        for number in range(share, len(folder.shard_names), job.shares):
            report.flaws += check_index(folder, number)
        reports.append(report)
    for part, source in opened:
        report = Report(f"{source.name}, {part}")
        ranges, looked_at = source.plan.base, 0
        for number in range(share, len(ranges), job.shares):
            numbers = range(int(ranges.start[number]), int(ranges.stop[number]))
            looked_at += len(numbers)
            report.flaws += check_samples(source, int(ranges.shard[number]), numbers)
        report.num_samples = looked_at
        reports.append(report)
    return reports


def _sources(job: LintJob, part: str) -> list[Source]:
    encoder = uncooked_encoder()
    encoder.ignores_conditions = True
    if job.decoder == "dali":
        from energon_dali.decode.dali.decoder import DaliDecoder

        encoder.decoder = DaliDecoder()
    else:
        encoder.decoder = SampleDecoder()
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    opened = get_val_datasets(
        job.path, split_part=part, worker_config=config, task_encoder=encoder, allow_empty=True, **job.options
    )
    return [source for _, source in opened]


def _folders(sources: list[Source]) -> Iterator[WebdatasetFolder]:
    """Yields each folder of tar shards that the sources read from, once."""
    seen = set()
    for source in sources:
        readers = source.reader.readers if isinstance(source.reader, JoinedReader) else (source.reader,)
        for reader in readers:
            if isinstance(reader, ShardReader) and reader.folder.path not in seen:
                seen.add(reader.folder.path)
                yield reader.folder


def join_reports(one: Report, other: Report) -> Report:
    """Merges the reports of two shares of one dataset."""
    is_index = one.num_samples is None or other.num_samples is None
    total = None if is_index else (one.num_samples or 0) + (other.num_samples or 0)
    return Report(one.name, total, one.flaws + other.flaws)
