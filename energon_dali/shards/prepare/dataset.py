"""Makes a folder of tar shards a dataset: indexes the shards, looks at their media, and splits them."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from energon_dali import __version__
from energon_dali.errors import ConfigError, DatasetFormatError, ShardError
from energon_dali.shards.documents.braces import collapse_names
from energon_dali.shards.documents.content import check_inner_paths
from energon_dali.shards.index.extent_file import ExtentFileWriter
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, UUID_NAME
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.index.tar_index import pack_tar_index
from energon_dali.shards.meta.info import INFO_NAMES, pack_shard_counts, read_shard_counts
from energon_dali.shards.meta.splits import DEFAULT_NAME, pack_split, read_split
from energon_dali.shards.prepare.building import building_folder, install
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError
from energon_dali.shards.prepare.index_identity import IndexIdentity
from energon_dali.shards.prepare.scanning import ScanOptions, scanning
from energon_dali.shards.prepare.shard_job import CheckPart, DescribeMedia, ShardJob, ShardScan, UnreadablePart
from energon_dali.shards.prepare.split_plan import find_shards, plan_split
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing

UNREADABLE_NAME = "unreadable.json"
SHUFFLE_SEED = 42
_SHOWN_DUPLICATES = 10
_SHOWN_ERRORS = 50
_LISTED_PART_NAMES = 50

Progress = Callable[[Iterable[ShardScan], int], Iterable[ShardScan]]
"""Takes the scans as they are done and the number of shards; yields the same scans and shows the progress."""


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


def prepare_dataset(
    path: str | StoragePath,
    *,
    shards: Sequence[str] | None = None,
    split_ratio: Mapping[str, float] | None = None,
    split_patterns: Sequence[tuple[str, str]] | None = None,
    split_config: str = DEFAULT_NAME,
    shuffle_seed: int | None = None,
    num_workers: int = 1,
    shards_in_flight: int = 32,
    ray_address: str | None = None,
    check_part: CheckPart | None = None,
    exclude_unreadable: bool = False,
    media_filter: DescribeMedia | None = None,
    tar_index_only: bool = False,
    tmp_path: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    identity: str | None = None,
) -> PrepareResult:
    """Indexes all shards of a folder and writes `.nv-meta`, except `dataset.yaml`: see `write_dataset_config`.

    Everything is built in a separate folder. On a local disk the new `.nv-meta` then replaces the old one in a single
    step: if this is interrupted or killed, either the old dataset or the new one is there. Other files in `.nv-meta`
    stay. What was found in a remote dataset, or in 256 MiB of local shards, is kept in the user's cache until the
    preparation is complete; after an interruption it continues from there.

    Memory use is about 60 bytes per part of the shards that are being scanned; the number of shards does not matter.

    Args:
        path: Folder of the dataset, local or remote.
        shards: Tar files, relative to the folder; None takes all. Samples are numbered in their order.
        split_ratio: Weight of each part; whole shards are divided in this proportion. Default: everything is train.
        split_patterns: (part, pattern) pairs instead of a ratio.
        split_config: Name of the split file in `.nv-meta`.
        shuffle_seed: Shuffles the shards before they are divided by ratio.
        num_workers: Number of processes. Several are spawned, so a script needs `if __name__ == "__main__":`.
        shards_in_flight: Remote shards that are read at the same time, by all processes together.
        ray_address: Address of a Ray cluster on which the shards are scanned instead: "auto", "ray://HOST:10001",
            "HOST:6379", or "local" for this machine alone. The result is the same.
        check_part: Parses the header of every image part; must be picklable if there are several processes.
        exclude_unreadable: Leave out the samples whose media cannot be parsed, in the split's `exclude`.
        media_filter: Selects the media to describe in the table `media_metadata`.
        tar_index_only: Only write the indices of the known shards; the split stays.
        tmp_path: Folder in which the index is built before it is moved or uploaded; by default a folder next to
            `.nv-meta`, or the system's temporary folder if the dataset is remote.
        progress: Shows the progress.
        identity: UUID of the index. None keeps the UUID of an index of the same samples at the same positions in the
            same split, or else derives one from these, so that preparing the same shards elsewhere gives the same.
            Saved positions are valid for every index with the same UUID.

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
            "split_ratio and split_patterns were both given. Give one: the proportions of the parts, or patterns of "
            "shard names."
        )
    options = ScanOptions(num_workers, shards_in_flight, ray_address)
    if tar_index_only:
        names, parts = list(read_shard_counts(root)), None
    else:
        names = list(shards) if shards is not None else find_shards(root)
        try:
            check_inner_paths(names)
        except ValueError as error:
            raise ConfigError(f"shards: {error}. Give the paths of tar files within {root}.") from error
        parts = plan_split(names, split_ratio, split_patterns, shuffle_seed)
        pack_split(split_config, parts)  # rejects a wrong name before hours are spent on indexing
    job = ShardJob(root, check_part, media_filter)
    with building_folder(root, tmp_path) as folder, scanning(job, names, options) as scans:
        shown = progress(scans, len(names)) if progress else scans
        # Energon's names of join indices identify a dataset by its UUID alone: another split needs another UUID.
        may_stay = parts is None or _has_split(root, split_config, parts)
        new_identity = IndexIdentity(root, folder, identity, parts, may_stay)
        found = write_index(root, folder, names, shown, media_filter, new_identity)
        excluded = sorted({f"{bad.shard}/{bad.key}" for bad in found.unreadable}) if exclude_unreadable else []
        if parts is not None:
            found = replace(found, split_parts=parts, split_samples=_count_samples(found, parts, excluded))
        for name, content in _documents(root, found, split_config, parts, excluded).items():
            with writing(folder / name):
                (folder / name).write_bytes(content)
        # In the order that does the least harm if files are replaced one by one and that is interrupted.
        ordered = (SQLITE_NAME, UUID_NAME, *INFO_NAMES, EXTENTS_NAME, UNREADABLE_NAME, split_config)
        new = {name: folder / name for name in ordered if (folder / name).is_file()}
        gone = [UNREADABLE_NAME] if check_part is not None and not found.unreadable else []
        install(root, folder, new, gone, {f"{name}.idx": tar_index_file(folder, name) for name in names})
    return found


def _has_split(root: StoragePath, split_config: str, parts: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether the folder is already split into these parts."""
    try:
        known = read_split(root, split_config)
    except DatasetFormatError:  # there is no split file, or it is damaged
        return False
    return dict(known.split_parts) == {part: tuple(shards) for part, shards in parts.items()}


def _count_samples(found: PrepareResult, parts: Mapping[str, Sequence[str]], excluded: Sequence[str]) -> dict[str, int]:
    """Returns the number of samples of each part, without the excluded ones."""
    unreadable = Counter(shard for shard, _ in {(bad.shard, bad.key) for bad in found.unreadable})
    return {
        part: sum(found.shard_counts[name] - (unreadable[name] if excluded else 0) for name in names)
        for part, names in parts.items()
    }


def _documents(
    root: StoragePath,
    found: PrepareResult,
    split_config: str,
    parts: Mapping[str, Sequence[str]] | None,
    excluded: Sequence[str],
) -> dict[str, bytes]:
    """Returns the content of the documents of `.nv-meta`, by file name."""
    documents = pack_shard_counts(root, found.shard_counts, f"energon-dali {__version__}")
    if found.unreadable:
        rows: list[dict[str, Any]] = [asdict(bad) for bad in found.unreadable]
        documents[UNREADABLE_NAME] = json.dumps(rows, indent=1, ensure_ascii=False).encode()
    if parts is not None:
        escaped = [pattern for name in excluded for pattern in collapse_names([name])]
        patterns = {part: collapse_names(chosen) for part, chosen in parts.items()}
        documents[split_config] = pack_split(split_config, patterns, escaped)
    return documents


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
