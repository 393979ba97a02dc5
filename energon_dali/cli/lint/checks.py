"""Finds flaws: compares the index of each shard with its tar, and decodes every sample as a loader would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import Decoder
from energon_dali.decode.interface import check_media
from energon_dali.errors import DatasetError, EnergonDaliError
from energon_dali.shards import RawSample, ShardExtents, WebdatasetFolder
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.index.tar_index import read_tar_index
from energon_dali.shards.meta.document import META
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, index_shard

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
