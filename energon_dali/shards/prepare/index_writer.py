"""Writes the files of an index from the scans of its shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from energon_dali.errors import ShardError
from energon_dali.shards.index.extent_file import ExtentFileWriter
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, UUID_NAME
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.index.tar_index import pack_tar_index
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError
from energon_dali.shards.prepare.index_identity import IndexIdentity
from energon_dali.shards.prepare.shard_job import DescribeMedia, ShardScan, UnreadablePart
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing

_SHOWN_DUPLICATES = 10
_SHOWN_ERRORS = 50
_LISTED_PART_NAMES = 50


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """What preparing a dataset found."""

    shard_counts: dict[str, int]
    """Samples per shard."""
    split_parts: dict[str, list[str]]
    """Shards of each part."""
    part_names: list[str]
    """The different part names, sorted; at most 50."""
    unreadable: list[UnreadablePart]
    """Media parts whose headers cannot be parsed."""
    num_media: int
    """Number of media parts that were described."""
    split_samples: dict[str, int] = field(default_factory=dict)
    """Samples of each part, without the excluded ones."""


def write_index(
    root: StoragePath,
    folder: Path,
    names: list[str],
    scans: Iterable[ShardScan],
    media_filter: DescribeMedia | None,
    identity: IndexIdentity,
) -> PrepareResult:
    """Writes the files of the index into the building folder, shard by shard as the scans arrive.

    An index of the same samples at the same positions keeps its identity, so that saved states and join indices still
    fit.

    Args:
        root: Folder of the dataset, for messages.
        folder: Building folder.
        names: Shards, in the order of the index.
        scans: What was found in each, in the same order.
        media_filter: Which media are described; None for none.
        identity: Gives the UUID of the index.

    Raises:
        DuplicateKeysError: Keys are not unique.
        ShardError: Shards are damaged or empty.
        StorageError: A file cannot be written.
    """
    counts: dict[str, int] = {}
    kinds: set[str] = set()
    unreadable: list[UnreadablePart] = []
    errors: list[str] = []
    num_media = 0
    with (
        SqliteWriter(folder / SQLITE_NAME, samples=True, media=media_filter is not None) as tables,
        ExtentFileWriter(folder / EXTENTS_NAME) as writer,
        writing(folder),
    ):
        for number, scan in enumerate(scans):
            if scan.error:
                errors.append(scan.error)
                continue
            counts[scan.shard] = scan.num_samples
            kinds.update(scan.part_names)
            unreadable += scan.unreadable
            num_media += len(scan.media)
            identity.add(scan.shard, scan.extents)
            tables.add_samples(scan.sample_rows(number), scan.part_rows(number))
            if scan.media:
                tables.add_media(scan.media)
            writer.add(scan.section, scan.names, scan.num_samples, scan.num_parts, scan.shard_bytes)
            tar_index_file(folder, scan.shard).write_bytes(pack_tar_index(scan.starts))
            if len(tables.duplicates) >= _SHOWN_DUPLICATES:
                break
        _raise_errors(root, names, errors, tables.duplicates)
        if media_filter is not None:
            tables.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
        uuid = identity.uuid(counts)
        writer.finish(uuid, counts)
        (folder / UUID_NAME).write_bytes(uuid.encode())
    return PrepareResult(counts, {}, sorted(kinds)[:_LISTED_PART_NAMES], unreadable, num_media)


def _raise_errors(
    root: StoragePath, names: list[str], errors: list[str], duplicates: list[tuple[str, int, int]]
) -> None:
    if errors:
        shown = "\n".join(f"  - {error}" for error in errors[:_SHOWN_ERRORS])
        raise ShardError(
            f"{len(errors)} of {len(names)} shards of {root} cannot be used; nothing was written.\n{shown}"
        )
    if duplicates:
        shown = "\n".join(
            f"  - {key!r} in {names[first]} and {names[second]}"
            for key, first, second in duplicates[:_SHOWN_DUPLICATES]
        )
        in_one_shard = any(first == second for _, first, second in duplicates)
        remedy = (
            "The parts of a sample must follow one another in its shard: write the shards again, sorted by "
            "name, as `tar --sort=name` does."
            if in_one_shard
            else "Run `energon-dali prepare` with --fix-duplicates: it rewrites the shards and puts the name of "
            "the shard before each key."
        )
        raise DuplicateKeysError(
            f"Sample keys of {root} are not unique, among them:\n{shown}\nA key has to be unique in the whole dataset. "
            f"{remedy}",
            in_one_shard,
        )


def tar_index_file(folder: Path, shard: str) -> Path:
    """Returns where the `.tar.idx` of a shard is kept until it is installed."""
    return folder / f"{hashlib.sha256(shard.encode()).hexdigest()}.idx"
