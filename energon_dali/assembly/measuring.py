"""Measures all samples of a dataset, or of those of a metadataset, and writes their measure files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from energon_dali import __version__
from energon_dali.assembly.cook_stage import cook_stage
from energon_dali.assembly.fingerprint import fingerprint_of
from energon_dali.assembly.measure_job import (
    Chunk,
    ChunkValues,
    MeasureJob,
    Unmeasured,
    measuring_encoder,
    names_differ,
)
from energon_dali.assembly.measures import data_of, encoder_name
from energon_dali.assembly.opened_source import open_source
from energon_dali.assembly.options import AnyEncoder, DatasetOptions, SourceOptions, check_encoder, check_path
from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.metadataset.document import YAML_SUFFIXES, located
from energon_dali.metadataset.loader import load_dataset
from energon_dali.metadataset.reference import SourceReference
from energon_dali.metadataset.resolve import resolve
from energon_dali.plan.measured import NOT_MEASURED
from energon_dali.samples.base import CrudeSample
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.measures.description import ShardFacts, fingerprint_digest
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.places import (
    MeasuredData,
    may_write,
    own_place,
    places_of,
    shard_names_and_counts,
    stale_reason,
    users_place,
)
from energon_dali.shards.measures.writer import MeasureWriter
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME
from energon_dali.shards.prepare.building import PREFIX, building_folder, owned_folder, tidy
from energon_dali.shards.prepare.index_identity import add_layout
from energon_dali.shards.prepare.journal import Journal
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing
from energon_dali.shards.storage.owned_folder import remove_stale
from energon_dali.task_encoder.encoder import overridden
from energon_dali.worker_config import WorkerConfig

CHUNK = 1024
"""Samples that a process measures at a time; what an interruption loses."""
SECONDS_PER_WORKER = 5.0
"""Work of this length takes less time than starting a process."""
_BLOCK = 1 << 16
_SHOWN_REASONS = 3

Progress = Callable[[str, int, int], object]
"""Called with the name of the dataset, the samples that are done, and all of its samples."""


@explain_call
@dataclass(frozen=True)
class MeasureResult:
    """What became of one dataset."""

    path: str
    """Of the dataset."""
    file: StoragePath
    """The measure file."""
    num_samples: int
    num_measured: int
    num_taken_over: int
    """Samples whose measures an earlier file had."""
    unmeasured: Mapping[str, Unmeasured]
    """Why samples were not measured, as far as this run looked at them."""
    was_measured: bool
    """Whether there was nothing to do."""


@dataclass(frozen=True)
class _Target:
    """One dataset that is to be measured."""

    reference: SourceReference
    data: MeasuredData
    job: MeasureJob
    fingerprint: Mapping[str, str]

    @property
    def digest(self) -> str:
        return fingerprint_digest(self.fingerprint)


@explain_call
def measure_datasets(
    path: str | os.PathLike[str],
    encoder: AnyEncoder,
    *,
    num_workers: int = 1,
    ray_address: str | None = None,
    again: bool = False,
    progress: Progress | None = None,
    allow_imports: bool = False,
    allow_code: bool = False,
    dataset_config: str | None = None,
    split_config: str | None = None,
) -> list[MeasureResult]:
    """Measures the dataset at a path, or all datasets of a metadataset, and returns what became of each.

    `energon-dali measure` calls it (docs/measures.md).

    All samples of a dataset are measured, whatever its splits and subsets. What an interrupted run has measured is kept
    in the user's cache, and the next run continues from there; with `again`, a run always starts over.

    Args:
        path: A prepared folder, a metadataset or a JSONL file.
        encoder: The task encoder, as in training.
        num_workers: Number of processes. Several are spawned, so a script needs `if __name__ == "__main__":`.
        ray_address: Address of a Ray cluster that measures instead.
        again: Measure what was measured already, too.
        progress: Called with the path of a dataset, the samples of it that are done, and all of its samples.
        allow_imports: As in `SourceOptions`.
        allow_code: As in `SourceOptions`.
        dataset_config: As in `SourceOptions`.
        split_config: As in `SourceOptions`.

    Raises:
        ConfigError: The hooks do not say what to measure, or return no measures; or no sample could be measured.
        DatasetError: A dataset cannot be read.
        StorageError: A file cannot be read or written.
    """
    source = SourceOptions(
        allow_imports=allow_imports,
        allow_code=allow_code,
        dataset_config=dataset_config,
        split_config=split_config,
    )
    run = partial(_measure, num_workers=num_workers, ray_address=ray_address, again=again, progress=progress)
    return [run(target) for target in _targets(str(check_path(path)), check_encoder(encoder), source)]


def _targets(path: str, encoder: AnyEncoder, source: SourceOptions) -> list[_Target]:
    """Returns the different datasets that a path names in any of its splits."""
    targets: dict[tuple[str, str], _Target] = {}
    for reference in _references(path, source):
        with located(reference.location):
            target = _open(reference, encoder, source)
            targets.setdefault((target.data.path, target.digest), target)
    return list(targets.values())


def _references(path: str, source: SourceOptions) -> Iterator[SourceReference]:
    if path.endswith(YAML_SUFFIXES):
        parts: Sequence[str] = getattr(load_dataset(path), "split_parts", ())
    elif path.endswith(".jsonl"):
        parts = ("train",)
    else:
        folder = WebdatasetFolder(
            path,
            dataset_config=source.dataset_config or DEFAULT_NAME,
            split_config=source.split_config,
            allow_imports=True,
        )
        parts = folder.split_parts[:1]
    own = {"dataset_config": source.dataset_config, "split_config": source.split_config}
    given = {name: value for name, value in own.items() if value is not None}
    for part in parts:
        for reference in resolve(path, part).sources:
            yield replace(reference, subset=None, **given)  # type: ignore[arg-type]


def _open(reference: SourceReference, encoder: AnyEncoder, source: SourceOptions) -> _Target:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = DatasetOptions(
        split_part=reference.split_part, encoder=encoder, worker_config=config, source=source, training=False
    )
    opened = open_source(reference, 0, options, False)
    data = data_of(opened.reader, reference.path)
    is_crude = opened.load.sample_type is CrudeSample
    twin = measuring_encoder(encoder, keeps_media=not is_crude and not overridden(encoder, "preencode_sample"))
    if twin is not encoder:
        options = replace(options, encoder=twin)
        opened = open_source(reference, 0, options, False)
    stage = cook_stage(opened, options, reference.aux) if is_crude else None
    if stage is not None and stage.is_generator:
        raise ConfigError(
            f"The cooker of {reference.path} is a generator function, which makes several samples of one, and measures "
            "are those of one sample. Let it return one sample."
        )
    cook = None if stage is None else stage.function
    job = MeasureJob(opened.reader, opened.load, cook, twin, config)
    return _Target(reference, data, job, fingerprint_of(opened.load, encoder, reference))


def _measure(
    target: _Target, *, num_workers: int, ray_address: str | None, again: bool, progress: Progress | None
) -> MeasureResult:
    data = target.data
    names, counts = shard_names_and_counts(data)
    total = sum(counts)
    known = None if again else _known(target)
    journal = _open_journal(target)
    if again:
        # A run with `again` neither uses nor keeps chunks: what changed since they were kept is unknown.
        journal.remove()
        journal = _ChunkJournal()
    if known is not None and not stale_reason(known.description, data):
        # A run may have been killed right after it had written the file.
        journal.remove()
        _tidy(data, known.path)
        return MeasureResult(data.path, known.path, total, known.description.num_measured, total, {}, True)
    layouts = _layouts(data)
    shards = [ShardFacts(*facts) for facts in zip(names, counts, layouts, strict=True)]
    reused = {} if known is None else _reusable(known, shards)
    chunks = [
        Chunk(number, start, min(start + CHUNK, count))
        for number, count in enumerate(counts)
        if number not in reused
        for start in range(0, count, CHUNK)
    ]
    missing = [chunk for chunk in chunks if journal.load(chunk) is None]
    writable = may_write(data)
    place = own_place(data, target.digest) if writable else users_place(data, target.digest)
    results = _results(target.job, missing, num_workers, ray_address, journal.add)
    try:
        with _building(data, place, writable) as folder, MeasureWriter(folder) as writer:
            collected = _Collected(writer, data.path, total, progress)
            waiting = set(missing)
            position = 0
            for number, count in enumerate(counts):
                if number in reused:
                    assert known is not None, "shards are reused from it"
                    collected.take_over(known, reused[number], count)
                    continue
                while position < len(chunks) and chunks[position].shard == number:
                    chunk = chunks[position]
                    kept = None if chunk in waiting else journal.load(chunk)
                    collected.add(kept or (next(results) if chunk in waiting else target.job(chunk)))
                    position += 1
            collected.refuse_nothing()
            file = folder / place.name
            writer.finish(
                file,
                uuid=data.uuid,
                shards=shards,
                encoder=encoder_name(target.job.encoder),
                fingerprint=target.fingerprint,
                reasons=collected.reasons,
            )
            place = _install(file, place, users_place(data, target.digest))
    except BaseException:
        journal.close()
        raise
    finally:
        results.close()
    journal.remove()
    measured = total - sum(collected.reasons.values())
    taken = sum(counts[number] for number in reused)
    return MeasureResult(data.path, place, total, measured, taken, collected.unmeasured, False)


def _results(
    job: MeasureJob,
    chunks: Sequence[Chunk],
    num_workers: int,
    ray_address: str | None,
    arrived: Callable[[ChunkValues], object],
) -> Generator[ChunkValues, None, None]:
    """Yields the measures of chunks, in order. The time that the first takes says how many processes are worth it."""
    if num_workers > 1 and ray_address is None and chunks:
        begin = time.monotonic()
        first = job(chunks[0])
        arrived(first)
        seconds = (time.monotonic() - begin) * (len(chunks) - 1)
        num_workers = min(num_workers, 1 + int(seconds / SECONDS_PER_WORKER))
        yield first
        chunks = chunks[1:]
    yield from map_in_order(job, chunks, num_workers, ray_address=ray_address, arrived=arrived)


def _known(target: _Target) -> MeasureFile | None:
    """Returns the measures of the dataset by this fingerprint, which may be of fewer shards; None if there are none."""
    found = None
    for place in places_of(target.data, target.digest):
        with suppress(FileNotFoundError, DatasetError, StorageError):  # a damaged one is written again
            one = MeasureFile(place)
            if not stale_reason(one.description, target.data):
                one.check_all()
                return one
            found = found or one
    return found


def _layouts(data: MeasuredData) -> list[str]:
    """Returns a digest of the keys and sizes of each shard's samples, by which it is recognised."""
    if isinstance(data, JsonlFile):
        return [data.uuid]
    data.index.fetch(range(len(data.shard_names)))
    found = []
    for number, name in enumerate(data.shard_names):
        layout = hashlib.blake2b(digest_size=12)
        extents: ShardExtents = data.index.shard(number)
        add_layout(layout, name, extents)
        found.append(layout.hexdigest())
        data.index.release_pages()
    return found


def _reusable(known: MeasureFile, shards: Sequence[ShardFacts]) -> dict[int, int]:
    """Returns, by the number of a shard, where its samples begin in a file of fewer or other shards.

    Shards with samples that were not measured are measured again.
    """
    starts: dict[ShardFacts, int] = {}
    start = 0
    for shard in known.description.shards:
        starts[shard] = start
        start += shard.num_samples
    found = {}
    try:
        for number, shard in enumerate(shards):
            if shard in starts:
                numbers = np.arange(starts[shard], starts[shard] + shard.num_samples)
                if not (known.take(known.names[0], numbers) == NOT_MEASURED).any():
                    found[number] = starts[shard]
        known.check_all()
    except (DatasetError, StorageError):  # it is damaged
        return {}
    return found


class _Collected:
    """Writes the measures in the order of the samples, and counts what could not be measured."""

    def __init__(self, writer: MeasureWriter, path: str, total: int, progress: Progress | None) -> None:
        self._writer = writer
        self._path = path
        self._total = total
        self._progress = progress
        self._first = ""
        self.reasons: Counter[str] = Counter()
        self.unmeasured: dict[str, Unmeasured] = {}

    def add(self, found: ChunkValues) -> None:
        if found.names:
            if self._writer.names and self._writer.names != found.names:
                raise names_differ(found.first, found.names, self._first, self._writer.names)
            self._first = self._first or found.first
        self._writer.add(found.names, found.values)
        for reason, one in found.unmeasured.items():
            self.reasons[reason] += one.count
            known = self.unmeasured.setdefault(reason, Unmeasured(0, one.example))
            known.count += one.count
        self._show()

    def take_over(self, known: MeasureFile, start: int, count: int) -> None:
        if count and self._writer.names not in ((), known.names):
            raise names_differ(self._first, self._writer.names, f"those of {known.path}", known.names)
        for first in range(start, start + count, _BLOCK):
            numbers = np.arange(first, min(first + _BLOCK, start + count))
            self._writer.add(known.names, np.stack([known.take(name, numbers) for name in known.names], axis=1))
        self._first = self._first or f"those of {known.path}"
        self._show()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self._path, self._writer.num_samples, self._total)

    def refuse_nothing(self) -> None:
        """Raises an error if no sample could be measured.

        Raises:
            ConfigError: None could.
        """
        if self._total and not self._writer.names:
            most = sorted(self.unmeasured.items(), key=lambda one: -one[1].count)[:_SHOWN_REASONS]
            shown = "; ".join(f"{one.count:,} x {reason}, such as {one.example}" for reason, one in most)
            raise ConfigError(f"No sample of {self._path} could be measured. {shown}. Correct the hooks, or the data.")


class _ChunkJournal(Journal):
    """The chunks of one unfinished measurement."""

    def add(self, found: ChunkValues) -> None:
        """Keeps what was measured."""
        content = {
            "names": found.names,
            "values": base64.b64encode(found.values.astype("<i8").tobytes()).decode(),
            "first": found.first,
            "unmeasured": [[reason, one.count, one.example] for reason, one in found.unmeasured.items()],
        }
        self.write(found.chunk.name, "", content)

    def load(self, chunk: Chunk) -> ChunkValues | None:
        """Returns what an earlier run has measured; None if there is nothing, or it is damaged."""
        try:
            known = self.read(chunk.name)
            names = tuple(known["names"])
            values = np.frombuffer(base64.b64decode(known["values"]), "<i8").astype(np.int64)
            values = values.reshape(chunk.stop - chunk.start, len(names))
            unmeasured = {reason: Unmeasured(count, example) for reason, count, example in known["unmeasured"]}
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return ChunkValues(chunk, names, values, known["first"], unmeasured)


def _open_journal(target: _Target) -> _ChunkJournal:
    names, counts = shard_names_and_counts(target.data)
    facts = json.dumps([names, counts]).encode("utf-8", "surrogatepass")
    work = {
        "dataset": target.data.path,
        "uuid": target.data.uuid,
        "shards": hashlib.blake2b(facts, digest_size=16).hexdigest(),
        "fingerprint": target.digest,
        "chunk": str(CHUNK),
        "version": __version__,
    }
    return _ChunkJournal.open("measure", ".chunks", work) or _ChunkJournal()


def _building(data: MeasuredData, place: StoragePath, writable: bool) -> Any:
    """Returns a context manager around a folder for unfinished files, next to where the file will be."""
    if writable and isinstance(data, WebdatasetFolder):
        return building_folder(data.root, None)
    if not place.is_local:
        return owned_folder(None)
    with writing(place.local.parent):
        place.local.parent.mkdir(parents=True, exist_ok=True)
    _tidy(data, place)
    return owned_folder(place.local.parent)


def _tidy(data: MeasuredData, place: StoragePath) -> None:
    """Removes what killed processes left."""
    if isinstance(data, WebdatasetFolder) and data.root.is_local and may_write(data):
        tidy(data.root)
    elif place.is_local:
        remove_stale(place.local.parent, PREFIX, unlocked=True)


def _install(file: os.PathLike[str], place: StoragePath, users: StoragePath) -> StoragePath:
    """Puts the file where it belongs, or into the user's folder if a store refuses it; returns where it is."""
    try:
        place.write_file(file)
    except StorageError:
        if place.is_local:
            raise
        users.write_file(file)
        return users
    return place
