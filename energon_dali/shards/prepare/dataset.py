"""Makes a folder of tar shards a dataset."""

from __future__ import annotations

import functools
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energon_dali import __version__
from energon_dali.errors import ConfigError, DatasetFormatError, ShardError
from energon_dali.shards.index.extent_file import ExtentFile, ExtentFileWriter, digest_of_counts
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, UUID_NAME, read_uuid
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import read_shard_counts, write_shard_counts
from energon_dali.shards.meta.splits import DEFAULT_NAME, read_split, write_split
from energon_dali.shards.prepare.brace_collapse import collapse_names
from energon_dali.shards.prepare.building import building_folder, useful_workers
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError
from energon_dali.shards.prepare.media_metadata import MediaFilter
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.shard_job import CheckPart, ShardJob, ShardScan, UnreadablePart, index_shard
from energon_dali.shards.prepare.split_plan import split_by_patterns, split_by_ratio
from energon_dali.shards.storage import StoragePath

UNREADABLE_NAME = "unreadable.json"
SHUFFLE_SEED = 42

Progress = Callable[[Iterable[ShardScan], int], Iterable[ShardScan]]
"""(shards as they are done, number of shards) -> the same; shows how far it is."""


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """What was found."""

    shard_counts: dict[str, int]
    """Samples per shard."""
    split_parts: dict[str, list[str]]
    """Shards of each part."""
    part_names: list[str]
    """Different part names, sorted; at most 50."""
    unreadable: list[UnreadablePart]
    """Media parts whose headers cannot be parsed."""
    num_media: int
    """Media that were described."""


def find_shards(path: str | StoragePath, exclude: str | None = None) -> list[str]:
    """Returns the tar files below a folder, sorted by path.

    Args:
        path: Folder of the dataset.
        exclude: Regular expression; a shard is left out where it is found anywhere in its path.

    Raises:
        ConfigError: `exclude` is no regular expression.
        DatasetFormatError: There is no tar file, or one is compressed, or its name is not valid UTF-8.
        StorageError: The folder cannot be listed.
    """
    root = StoragePath.of(path)
    try:
        unwanted = re.compile(exclude) if exclude else None
    except re.error as error:
        raise ConfigError(f"The pattern {exclude!r} of exclude is no regular expression: {error}.") from error
    files = [name for name in root.list_files() if unwanted is None or not unwanted.search(name)]
    # By path components, as other programs of this format sort, so that both number the shards alike.
    shards = sorted((name for name in files if name.endswith(".tar")), key=lambda name: name.split("/"))
    compressed = [name for name in files if name.endswith((".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst"))]
    if compressed:
        raise DatasetFormatError(
            f"{root} holds {len(compressed)} compressed shards, such as {compressed[0]}. Samples are read at their "
            "place in the file, which "
            "a compressed tar does not allow: unpack them (gunzip) to .tar, or leave them out with --exclude; media "
            "in them are compressed already."
        )
    for name in shards:
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DatasetFormatError(
                f"{root} holds the shard {name!r}, whose name is not valid UTF-8, which .info.json needs. Rename it, "
                "or leave it out with --exclude."
            )
    if not shards:
        raise DatasetFormatError(f"{root} holds no .tar file. Give the folder that holds the shards.")
    return shards


def prepare_dataset(
    path: str | StoragePath,
    *,
    shards: Sequence[str] | None = None,
    split_ratio: Mapping[str, float] | None = None,
    split_patterns: Sequence[tuple[str, str]] | None = None,
    split_config: str = DEFAULT_NAME,
    shuffle_seed: int | None = None,
    num_workers: int = 1,
    check_part: CheckPart | None = None,
    exclude_unreadable: bool = False,
    media_filter: MediaFilter | None = None,
    tar_index_only: bool = False,
    tmp_path: Path | None = None,
    progress: Progress | None = None,
    identity: str | None = None,
) -> PrepareResult:
    """Indexes all shards of a folder and writes `.nv-meta`; `dataset.yaml` alone is left to `write_dataset_config`.

    A shard is held in memory while it is indexed, about 60 bytes per part; the number of shards does not matter.

    Args:
        path: Folder of the dataset, local or remote.
        shards: Tar files, relative to the folder; None takes all. Their order numbers the samples.
        split_ratio: Share of each part, cut in whole shards. Default: everything is train.
        split_patterns: (part, pattern) pairs in place of a ratio.
        split_config: Name of the split file in `.nv-meta`.
        shuffle_seed: Shuffles the shards before they are cut by ratio.
        num_workers: Processes. More than one are spawned: a script then needs `if __name__ == "__main__":`.
        check_part: Looks at the header of every image part; picklable where there are several processes.
        exclude_unreadable: Leave out the samples whose media cannot be parsed, in the split's `exclude`.
        media_filter: Which media to describe in the table `media_metadata`.
        tar_index_only: Write the indices alone, of the shards that are known; the split stays.
        tmp_path: Folder in which the index is built before it is moved or uploaded; default is
            `.nv-meta`, or the system's where the dataset is remote.
        progress: Shows how far it is.
        identity: UUID of the index; None keeps that of an index of the same samples at the same places in the same
            split, or draws one. Positions hold in each index of one identity: give one where the same shards are made
            in several places.

    Raises:
        ConfigError: Arguments contradict each other, or a pattern matches nothing.
        DatasetFormatError: There is no shard, or one is compressed.
        DuplicateKeysError: Keys are not unique; the message names some.
        ShardError: Shards are damaged or empty; the message lists them all.
        StorageError: Something cannot be read or written.
    """
    root = StoragePath.of(path)
    if split_ratio is not None and split_patterns is not None:
        raise ConfigError(
            "split_ratio and split_patterns were both given. Give one: shares of whole shards, or patterns of shard "
            "names."
        )
    if tar_index_only:
        names = list(read_shard_counts(root))
    else:
        names = list(shards) if shards is not None else find_shards(root)
        parts = _plan_split(names, split_ratio, split_patterns, shuffle_seed)
    job = ShardJob(root, check_part, media_filter)
    scans = map_in_order(functools.partial(index_shard, job), names, useful_workers(root, names, num_workers))
    # Energon's names of join indices tell datasets apart by the identity, and not the parts of their splits.
    known = _known_index(root) if tar_index_only or _is_split_so(root, split_config, parts) else None
    (root / META / EXTENTS_NAME).remove()  # from here on it could be of other shards than .tar.idx
    shown = progress(scans, len(names)) if progress else scans
    found = _write_index(root, names, shown, media_filter, tmp_path, identity, known)
    write_shard_counts(root, found.shard_counts, f"energon-dali {__version__}")
    _write_unreadable(root, found.unreadable, checked=check_part is not None)
    if tar_index_only:
        return found
    exclude = sorted({f"{bad.shard}/{bad.key}" for bad in found.unreadable}) if exclude_unreadable else []
    escaped = [pattern for name in exclude for pattern in collapse_names([name])]
    write_split(root, split_config, {part: collapse_names(chosen) for part, chosen in parts.items()}, escaped)
    return PrepareResult(found.shard_counts, parts, found.part_names, found.unreadable, found.num_media)


def _plan_split(
    names: list[str],
    ratio: Mapping[str, float] | None,
    patterns: Sequence[tuple[str, str]] | None,
    shuffle_seed: int | None,
) -> dict[str, list[str]]:
    if not names:
        raise DatasetFormatError(
            "No shard was given. Give the tar files relative to the folder, or shards=None for all."
        )
    if patterns is not None:
        return split_by_patterns(names, patterns)
    return split_by_ratio(names, {"train": 1.0, "val": 0.0, "test": 0.0} if ratio is None else ratio, shuffle_seed)


def _is_split_so(root: StoragePath, split_config: str, parts: Mapping[str, Sequence[str]]) -> bool:
    try:
        known = read_split(root, split_config)
    except DatasetFormatError:  # there is none, or none that is whole
        return False
    return dict(known.split_parts) == {part: tuple(shards) for part, shards in parts.items()}


@dataclass(frozen=True, slots=True)
class _KnownIndex:
    """What tells an index from others."""

    uuid: str
    table: bytes
    digest: bytes


def _known_index(root: StoragePath) -> _KnownIndex | None:
    """Returns the index that is about to be replaced; None where there is none that is whole."""
    try:
        file = ExtentFile(root / META / EXTENTS_NAME)
    except (FileNotFoundError, DatasetFormatError):
        return None
    with closing(file):
        is_whole = file.uuid != "" and file.uuid == read_uuid(root)
        return _KnownIndex(file.uuid, file.table, file.digest) if is_whole else None


def _write_index(
    root: StoragePath,
    names: list[str],
    scans: Iterable[ShardScan],
    media_filter: MediaFilter | None,
    tmp_path: Path | None,
    identity: str | None,
    known: _KnownIndex | None,
) -> PrepareResult:
    """Takes the shards as they are done, and writes the three files of the index.

    An index of the same samples at the same places keeps its identity: states and join indices of before still fit.
    """
    folder = building_folder(root, tmp_path)
    sqlite, extents = folder / SQLITE_NAME, folder / EXTENTS_NAME
    counts: dict[str, int] = {}
    kinds: set[str] = set()
    unreadable: list[UnreadablePart] = []
    errors: list[str] = []
    num_media = 0
    try:
        with (
            SqliteWriter(sqlite, samples=True, media=media_filter is not None) as tables,
            ExtentFileWriter(extents) as writer,
        ):
            for number, scan in enumerate(scans):
                if scan.error:
                    errors.append(scan.error)
                    continue
                counts[scan.shard] = scan.num_samples
                kinds.update(scan.part_names)
                unreadable += scan.unreadable
                num_media += len(scan.media)
                tables.add_samples(scan.sample_rows(number), scan.part_rows(number))
                if scan.media:
                    tables.add_media(scan.media)
                writer.add(scan.section, scan.names, scan.num_samples, scan.num_parts, scan.shard_bytes)
                if len(tables.duplicates) >= 10:
                    break
            _refuse(root, names, errors, tables.duplicates)
            if media_filter is not None:
                tables.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
            same = known is not None and (known.table, known.digest) == (writer.table, digest_of_counts(counts))
            identity = identity or (known.uuid if known is not None and same else str(uuid.uuid4()))
            writer.finish(identity, counts)
        (root / META / SQLITE_NAME).write_file(sqlite)
        (root / META / UUID_NAME).write_bytes(identity.encode())
        (root / META / EXTENTS_NAME).write_file(extents)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return PrepareResult(counts, {}, sorted(kinds)[:50], unreadable, num_media)


def _refuse(root: StoragePath, names: list[str], errors: list[str], duplicates: list[tuple[str, int, int]]) -> None:
    if errors:
        shown = "\n".join(f"  - {error}" for error in errors[:50])
        raise ShardError(
            f"{len(errors)} of {len(names)} shards of {root} cannot be used; nothing was written.\n{shown}"
        )
    if duplicates:
        shown = "\n".join(
            f"  - {key!r} in {names[first]} and {names[second]}" for key, first, second in duplicates[:10]
        )
        in_one_shard = any(first == second for _, first, second in duplicates)
        remedy = (
            "The parts of a sample have to follow one another in its shard: write the shards anew in the order of the "
            "names, as `tar --sort=name` does."
            if in_one_shard
            else "Run `energon-dali prepare` with --fix-duplicates: it writes the shards anew, with the name of its "
            "shard before each key."
        )
        raise DuplicateKeysError(
            f"Sample keys of {root} are not unique, among them:\n{shown}\nA key names a sample in the whole dataset. "
            f"{remedy}",
            in_one_shard,
        )


def _write_unreadable(root: StoragePath, unreadable: list[UnreadablePart], *, checked: bool) -> None:
    place = root / META / UNREADABLE_NAME
    if unreadable:
        rows: list[dict[str, Any]] = [asdict(bad) for bad in unreadable]
        place.write_bytes(json.dumps(rows, indent=1, ensure_ascii=False).encode())
    elif checked:
        place.remove()
