"""Makes a folder of tar shards a dataset."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from energon_dali import __version__
from energon_dali.errors import ConfigError, DatasetFormatError, ShardError
from energon_dali.shards.index.extent_file import ExtentFileWriter
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, UUID_NAME
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.index.tar_index import pack_tar_index
from energon_dali.shards.index.tar_scan import split_member_name
from energon_dali.shards.meta.info import pack_shard_counts, read_shard_counts, refuse_meta
from energon_dali.shards.meta.splits import DEFAULT_NAME, pack_split, read_split
from energon_dali.shards.prepare.brace_collapse import collapse_names
from energon_dali.shards.prepare.building import building_folder, install, useful_workers
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError
from energon_dali.shards.prepare.known_index import KnownIndex
from energon_dali.shards.prepare.media_metadata import MediaFilter
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.shard_job import CheckPart, ShardJob, ShardScan, UnreadablePart, index_shard
from energon_dali.shards.prepare.split_plan import split_by_patterns, split_by_ratio
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing

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
    split_samples: dict[str, int] = field(default_factory=dict)
    """Samples of each part, without those that are excluded."""


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
    refuse_meta(root)
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
        raise DatasetFormatError(_no_shards(root, exclude))
    return shards


def _no_shards(root: StoragePath, exclude: str | None) -> str:
    message = f"{root} holds no .tar file. Give the folder that holds the shards."
    names = [name for name in root.list_files() if not name.startswith((".", "__"))]
    samples = [name for name in names if split_member_name(name) is not None]
    if exclude and any(name.endswith(".tar") for name in names):
        return f"{root} holds no .tar file that --exclude {exclude!r} leaves. Exclude fewer."
    if not samples or not root.is_local:
        return message
    folder, shards = shlex.quote(root.url), shlex.quote(f"{root.url}-shards")
    return (
        f"{message} If its {len(samples):,} files, such as {samples[0]}, are your samples, put them into a shard "
        "first:\n\n"
        f"  mkdir {shards} && tar -cf {shards}/shard_000.tar --sort=name --transform='s,^\\./,,' -C {folder} .\n"
        f"  energon-dali prepare {shards}\n\n"
        "Files whose names are equal up to the first dot, such as cat.jpg and cat.txt, are one sample. Write several "
        "shards of a few thousand samples each if there are many, or to split them into training and validation."
    )


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

    Everything is built aside. On a local disk the new `.nv-meta` then takes the place of the old one in a single step:
    whenever this is interrupted or killed, the old dataset or the new one is there. Other files in `.nv-meta` stay.

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
        tmp_path: Folder in which the index is built before it is moved or uploaded; default is a folder next to
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
    with ExitStack() as stack:
        folder = stack.enter_context(building_folder(root, tmp_path))
        parts: dict[str, list[str]] = {}
        if tar_index_only:
            names = list(read_shard_counts(root))
        else:
            names = list(shards) if shards is not None else find_shards(root)
            parts = _plan_split(names, split_ratio, split_patterns, shuffle_seed)
            pack_split(split_config, parts)  # refuses a wrong name before hours are spent on indexing
        known = None
        # Energon's names of join indices tell datasets apart by the identity, and not the parts of their splits.
        if tar_index_only or _is_split_so(root, split_config, parts):
            known = stack.enter_context(closing(KnownIndex(root)))
        job = ShardJob(root, check_part, media_filter)
        scans = map_in_order(functools.partial(index_shard, job), names, useful_workers(root, names, num_workers))
        shown = progress(scans, len(names)) if progress else scans
        found = _write_index(root, folder, names, shown, media_filter, identity, known)
        # In an order that does the least harm where files are replaced one by one and that is cut short.
        files = {name: folder / name for name in (SQLITE_NAME, UUID_NAME)}
        documents = pack_shard_counts(root, found.shard_counts, f"energon-dali {__version__}")
        files |= {name: folder / name for name in (*documents, EXTENTS_NAME)}
        if found.unreadable:
            rows: list[dict[str, Any]] = [asdict(bad) for bad in found.unreadable]
            documents[UNREADABLE_NAME] = json.dumps(rows, indent=1, ensure_ascii=False).encode()
        if not tar_index_only:
            exclude = sorted({f"{bad.shard}/{bad.key}" for bad in found.unreadable}) if exclude_unreadable else []
            escaped = [pattern for name in exclude for pattern in collapse_names([name])]
            patterns = {part: collapse_names(chosen) for part, chosen in parts.items()}
            documents[split_config] = pack_split(split_config, patterns, escaped)
            found = replace(found, split_parts=parts, split_samples=_count_samples(found, parts, exclude))
        for name, content in documents.items():
            files[name] = folder / name
            with writing(files[name]):
                files[name].write_bytes(content)
        gone = [UNREADABLE_NAME] if check_part is not None and not found.unreadable else []
        install(root, folder, files, gone, {f"{name}.idx": _tar_index(folder, name) for name in names})
    return found


def _count_samples(found: PrepareResult, parts: Mapping[str, Sequence[str]], exclude: Sequence[str]) -> dict[str, int]:
    excluded = Counter(bad.shard for bad in {(bad.shard, bad.key): bad for bad in found.unreadable}.values())
    return {
        part: sum(found.shard_counts[name] - (excluded[name] if exclude else 0) for name in names)
        for part, names in parts.items()
    }


def _tar_index(folder: Path, shard: str) -> Path:
    """Returns where the `.tar.idx` of a shard waits until it is put in place."""
    return folder / f"{hashlib.sha256(shard.encode()).hexdigest()}.idx"


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


def _write_index(
    root: StoragePath,
    folder: Path,
    names: list[str],
    scans: Iterable[ShardScan],
    media_filter: MediaFilter | None,
    identity: str | None,
    known: KnownIndex | None,
) -> PrepareResult:
    """Takes the shards as they are done, and writes the files of the index into the building folder.

    An index of the same samples at the same places keeps its identity: states and join indices of before still fit.
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
            if known is not None:
                known.compare(number, scan.shard, scan.extents)
            tables.add_samples(scan.sample_rows(number), scan.part_rows(number))
            if scan.media:
                tables.add_media(scan.media)
            writer.add(scan.section, scan.names, scan.num_samples, scan.num_parts, scan.shard_bytes)
            _tar_index(folder, scan.shard).write_bytes(pack_tar_index(scan.starts))
            if len(tables.duplicates) >= 10:
                break
        _refuse(root, names, errors, tables.duplicates)
        if media_filter is not None:
            tables.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
        identity = identity or (known.identity(counts) if known is not None else "") or str(uuid.uuid4())
        writer.finish(identity, counts)
        (folder / UUID_NAME).write_bytes(identity.encode())
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
