"""Checks all datasets that a path names, or one process's share of their shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from energon_dali.assembly.datasets import get_val_datasets
from energon_dali.cli.lint.checks import Flaw, check_index, check_samples
from energon_dali.cli.single_file import is_jsonl, is_metadataset
from energon_dali.datasets.row_sources import Source
from energon_dali.decode import SampleDecoder
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.metadataset.loader import load_dataset
from energon_dali.shards import ShardReader, WebdatasetFolder
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.worker_config import WorkerConfig


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


def all_parts(path: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Returns the parts of the split of the dataset at a path.

    Args:
        path: A prepared folder, a metadataset or a JSONL file.
        options: Keyword arguments of `WebdatasetFolder`.

    Raises:
        DatasetFormatError: It is not prepared, or its files are invalid.
        StorageError: They cannot be read.
    """
    if is_jsonl(path):
        return ("train",)
    if is_metadataset(path):
        return tuple(getattr(load_dataset(path), "split_parts", ()))
    return WebdatasetFolder(path, **options).split_parts


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
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.cookers = (Cooker(_as_it_is),)
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


def _as_it_is(sample: Any, **stores: Any) -> Any:
    return sample


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
