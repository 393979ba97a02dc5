"""Compares the indices of a shard with the tar itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from energon_dali.cli.lint.flaw import Flaw, reason_of
from energon_dali.errors import EnergonDaliError
from energon_dali.shards import ShardExtents, WebdatasetFolder
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.index.tar_index import read_tar_index
from energon_dali.shards.meta.document import META
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, index_shard


def check_index(folder: WebdatasetFolder, number: int) -> Iterator[Flaw]:
    """Yields what the indices of a shard say otherwise than its tar: counts, offsets, keys, parts.

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
        # The first entry is not compared: readers take the first sample to begin with the file.
        if read_tar_index(folder.root, name)[1:].tolist() != scan.starts[1:]:
            yield Flaw(name, "", f"{name}.idx holds other offsets than the tar")
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
    """Yields the first sample that an index describes otherwise."""
    found = scan.extents
    for told, true in zip_longest(range(known.num_samples), range(found.num_samples)):
        if told is None or true is None:
            yield Flaw(scan.shard, "", f"{index} has {known.num_samples} samples, the tar has {found.num_samples}")
            return
        if known.key(told) != found.key(true):
            yield Flaw(scan.shard, found.key(true), f"{index} has the key {known.key(told)!r} in its place")
            return
        if sorted(known.parts(told)) != sorted(found.parts(true)):
            yield Flaw(scan.shard, found.key(true), f"{index} has its parts at other places than the tar")
            return
