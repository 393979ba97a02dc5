"""Adds descriptions of media to a prepared dataset, or to a plain folder of media files.

They are stored in the table `media_metadata`, so that sizes and durations are known before anything is decoded. The
indices of videos and sounds are stored next to it, in `media_index.bin`.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from energon_dali.errors import DatasetFormatError, EnergonDaliError, ShardError, StorageError
from energon_dali.shards.index.extent_index import SQLITE_NAME, read_uuid
from energon_dali.shards.index.media_index_file import (
    MEDIA_INDEX_NAME,
    Entry,
    MediaIndexFile,
    MediaIndexFileWriter,
    MediaSection,
    place_of_name,
    reason_in_entry,
)
from energon_dali.shards.index.sqlite_index import MediaRow, SqliteWriter
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import info_present, read_shard_counts, refuse_meta
from energon_dali.shards.prepare.building import building_folder
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.scanning import (
    BYTES_PER_WORKER,
    INDEXED_BYTES_PER_WORKER,
    ScanOptions,
    scanning,
    useful_workers,
)
from energon_dali.shards.prepare.shard_job import DescribeMedia, IndexMedia, ShardJob, ShardScan
from energon_dali.shards.storage import StoragePath

FILES_PER_JOB = 256
_KEPT_REASONS = 20
_COPY = "known-media.bin"
Progress = Callable[[Iterable[ShardScan], int], Iterable[ShardScan]]


@dataclass(slots=True)
class MediaCounts:
    """What was done with the media of a dataset."""

    described: int = 0
    """Media that are described in the table `media_metadata`, those of shards that were taken over included."""
    indexed: int = 0
    """Videos and sounds that have an index."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why videos and sounds have no index, and how many: the first `_KEPT_REASONS` different reasons."""
    without_index: int = 0
    """Videos and sounds that have none, and are read whole."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Counts the entries of some media."""
        for _, entry in entries:
            reason = reason_in_entry(entry)
            if not reason:
                self.indexed += 1
                continue
            self.without_index += 1
            if reason in self.reasons or len(self.reasons) < _KEPT_REASONS:
                self.reasons[reason] += 1


def add_media_metadata(
    path: str | StoragePath,
    media_filter: DescribeMedia,
    *,
    index_media: IndexMedia | None = None,
    num_workers: int = 1,
    shards_in_flight: int = 32,
    ray_address: str | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> MediaCounts:
    """Describes the media of a dataset in the table `media_metadata`, and indexes its videos and sounds.

    A plain folder without shards gets a table of its files, whose names are paths below the folder. Existing entries
    stay where they are not described again. The rest of the index does not change.

    With `index_media`, shards that an existing `media_index.bin` covers are not read again if they have not changed.

    Args:
        path: Folder of the dataset, or of media files.
        media_filter: Selects the media to describe.
        index_media: Indexes the videos and sounds among them, into `media_index.bin`; None leaves that file as it is.
        num_workers: Number of processes; see `prepare_dataset`.
        shards_in_flight: Remote shards that are read at the same time; see `prepare_dataset`.
        ray_address: Address of a Ray cluster; see `prepare_dataset`.
        tmp_path: Folder in which the table is built before it is installed.
        progress: Shows the progress over the shards.

    Raises:
        DatasetFormatError: There is no such folder, or it holds tar shards that are not prepared.
        ShardError: Shards are damaged.
        StorageError: Something cannot be read or written.
    """
    root = StoragePath.of(path)
    is_prepared = info_present(root)
    counts = MediaCounts()
    if not is_prepared:
        jobs = _file_jobs(root)  # before anything is built: it refuses paths that are not folders of media
    with building_folder(root, tmp_path) as folder:
        index = root / META / SQLITE_NAME
        version = index.identity() if is_prepared else None
        with _media_table(root, folder, media_filter, needs_index=is_prepared) as table:
            if is_prepared:
                options = ScanOptions(num_workers, shards_in_flight, ray_address)
                _add_shards(
                    root, folder, table, ShardJob(root, None, media_filter, index_media), options, progress, counts
                )
            else:
                _add_files(root, folder, table, jobs, media_filter, index_media, num_workers, counts)
        if is_prepared and index.identity() != version:
            raise StorageError(
                f"{index} was replaced while the media were described: the dataset was prepared meanwhile. It stays as "
                "it is now; run the command again."
            )
        index.write_file(folder / SQLITE_NAME)
        if index_media is not None:
            (root / META / MEDIA_INDEX_NAME).write_file(folder / MEDIA_INDEX_NAME)
    return counts


@contextmanager
def _media_table(
    root: StoragePath, folder: Path, media_filter: DescribeMedia, *, needs_index: bool
) -> Iterator[SqliteWriter]:
    """Yields a writer to a copy of the index of a dataset, in the building folder."""
    copy = folder / SQLITE_NAME
    try:
        (root / META / SQLITE_NAME).copy_to(copy)
    except FileNotFoundError as error:
        if needs_index:
            raise DatasetFormatError(
                f"{root} has no {META}/{SQLITE_NAME}. Run `energon-dali prepare {shlex.quote(str(root))}` first."
            ) from error
        copy.unlink(missing_ok=True)
    with SqliteWriter(copy, samples=False, media=True) as table:
        yield table
        table.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))


def _add_shards(
    root: StoragePath,
    folder: Path,
    table: SqliteWriter,
    job: ShardJob,
    options: ScanOptions,
    progress: Progress | None,
    counts: MediaCounts,
) -> None:
    """Adds the media of the shards of a prepared dataset, shard by shard as they are scanned."""
    shard_counts = read_shard_counts(root)
    names = list(shard_counts)
    with MediaIndexFileWriter(folder / MEDIA_INDEX_NAME) as writer, _known_sections(job, folder) as known:
        numbers = {name: tar for tar, name in enumerate(names)}
        versions = {
            name: section.version
            for name, (_, _, section) in known.items()
            if name in numbers and table.count_media(numbers[name]) == section.num_described
        }
        with scanning(job, names, options, versions) as scans:
            for scan in progress(scans, len(names)) if progress else scans:
                if scan.error:
                    raise ShardError(scan.error, scan.shard)
                if scan.is_known and scan.shard in versions:
                    file, number, section = known[scan.shard]
                    writer.take_over(file, number)
                    counts.described += section.num_described
                    counts.add(file.entries(number))
                    continue
                table.add_media(scan.media)
                counts.described += len(scan.media)
                counts.add(scan.media_index)
                made = MediaSection(scan.shard, scan.version, _maker(job), len(scan.media), len(scan.media_index))
                writer.add(made, scan.media_index)
        writer.finish(read_uuid(root), shard_counts)


def _maker(job: ShardJob) -> str:
    """Returns what the media of a job and their entries depend on, apart from the shards."""
    if job.describe_media is None or job.index_media is None:
        return ""
    media = job.describe_media
    return f"{job.index_media.version} {media.strategy} {','.join(media.patterns)}"


@contextmanager
def _known_sections(job: ShardJob, folder: Path) -> Iterator[dict[str, tuple[MediaIndexFile, int, MediaSection]]]:
    """Yields the sections of the existing file that the same job has made, by shard: (file, number, section)."""
    if job.index_media is None:
        yield {}
        return
    path = job.root / META / MEDIA_INDEX_NAME
    try:
        if not job.root.is_local:  # every section is read, and each would be a request
            path.copy_to(folder / _COPY)
            path = StoragePath.of(folder / _COPY)
        file = MediaIndexFile(path)
    except (FileNotFoundError, DatasetFormatError):
        yield {}
        return
    with closing(file):
        found: dict[str, tuple[MediaIndexFile, int, MediaSection]] = {}
        for number in range(file.num_sections):
            try:
                section = file.section(number)
            except DatasetFormatError:
                continue
            if section.maker == _maker(job) and section.version:
                found[section.name] = file, number, section
        yield found


def _file_jobs(root: StoragePath) -> list[list[str]]:
    """Returns the files below a plain folder, some hundred at a time.

    Raises:
        DatasetFormatError: There is no such folder, or it holds tar shards that are not prepared.
    """
    refuse_meta(root)
    if not root.is_dir():
        raise DatasetFormatError(f"{root} is not a folder. Give a prepared dataset, or a folder of media files.")
    names = [name for name in root.list_files() if not name.startswith(f"{META}/") and f"/{META}/" not in name]
    shards = [name for name in names if name.endswith(".tar")]
    if shards:
        raise DatasetFormatError(
            f"{root} holds tar shards such as {shards[0]} and is not prepared. Run `energon-dali prepare "
            f"{shlex.quote(str(root))}` first."
        )
    return [names[first : first + FILES_PER_JOB] for first in range(0, len(names), FILES_PER_JOB)]


def _add_files(
    root: StoragePath,
    folder: Path,
    table: SqliteWriter,
    jobs: list[list[str]],
    media_filter: DescribeMedia,
    index_media: IndexMedia | None,
    num_workers: int,
    counts: MediaCounts,
) -> None:
    """Adds the media files below a plain folder."""
    describe = functools.partial(_describe, root, media_filter, index_media)
    share = BYTES_PER_WORKER if index_media is None else INDEXED_BYTES_PER_WORKER
    workers = useful_workers(root, [name for names in jobs for name in names], num_workers, share)
    all_entries: list[Entry] = []
    for rows, entries in map_in_order(describe, jobs, workers):
        table.add_media(rows)
        counts.described += len(rows)
        counts.add(entries)
        all_entries += entries
    if index_media is not None:
        with MediaIndexFileWriter(folder / MEDIA_INDEX_NAME) as writer:
            writer.add(MediaSection("", "", "", counts.described, len(all_entries)), all_entries)
            writer.finish("", {})


def _describe(
    root: StoragePath, media_filter: DescribeMedia, index_media: IndexMedia | None, names: Sequence[str]
) -> tuple[list[MediaRow], list[Entry]]:
    """Returns (rows, entries) of those files that are media; a file that cannot be read has none."""
    rows, entries = [], []
    for name in names:
        content = functools.cache((root / name).read_bytes)
        try:
            found = media_filter(name, content)
            if found is not None and found[0] == "av" and index_media is not None:
                entries.append((place_of_name(name), index_media(content())))
        except (EnergonDaliError, OSError):
            continue
        if found is not None:
            rows.append((name, *found))
    return rows, entries
