"""Adds descriptions of media to a prepared dataset, or to a plain folder of media files.

They are stored in the table `media_metadata`, so that sizes and durations are known before anything is decoded.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from energon_dali.errors import DatasetFormatError, EnergonDaliError, ShardError
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import MediaRow, SqliteWriter
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import info_present, read_shard_counts, refuse_meta
from energon_dali.shards.prepare.building import building_folder
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.scanning import ScanOptions, scanning, useful_workers
from energon_dali.shards.prepare.shard_job import DescribeMedia, ShardJob, ShardScan
from energon_dali.shards.storage import StoragePath

FILES_PER_JOB = 256


def add_media_metadata(
    path: str | StoragePath,
    media_filter: DescribeMedia,
    *,
    num_workers: int = 1,
    shards_in_flight: int = 32,
    ray_address: str | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    progress: Callable[[Iterable[ShardScan], int], Iterable[ShardScan]] | None = None,
) -> int:
    """Describes the media of a dataset in the table `media_metadata`, and returns how many there are.

    A plain folder without shards gets a table of its files, whose names are paths below the folder. Existing entries
    stay where they are not described again. The rest of the index does not change.

    Args:
        path: Folder of the dataset, or of media files.
        media_filter: Selects the media to describe.
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
    if is_prepared:
        rows_of = _rows_of_shards(root, media_filter, ScanOptions(num_workers, shards_in_flight, ray_address), progress)
    else:
        rows_of = _rows_of_files(root, media_filter, num_workers)
    described = 0
    with _media_table(root, media_filter, tmp_path, needs_index=is_prepared) as table:
        for rows in rows_of:
            table.add_media(rows)
            described += len(rows)
    return described


@contextmanager
def _media_table(
    root: StoragePath, media_filter: DescribeMedia, tmp_path: str | os.PathLike[str] | None, *, needs_index: bool
) -> Iterator[SqliteWriter]:
    """Yields a writer to a copy of the index of a folder, and installs the copy at the end."""
    index = root / META / SQLITE_NAME
    with building_folder(root, tmp_path) as folder:
        copy = folder / SQLITE_NAME
        try:
            index.copy_to(copy)
        except FileNotFoundError as error:
            if needs_index:
                raise DatasetFormatError(
                    f"{root} has no {META}/{SQLITE_NAME}. Run `energon-dali prepare {shlex.quote(str(root))}` first."
                ) from error
            copy.unlink(missing_ok=True)
        with SqliteWriter(copy, samples=False, media=True) as table:
            yield table
            table.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
        index.write_file(copy)


def _rows_of_shards(
    root: StoragePath,
    media_filter: DescribeMedia,
    options: ScanOptions,
    progress: Callable[[Iterable[ShardScan], int], Iterable[ShardScan]] | None,
) -> Iterator[Sequence[MediaRow]]:
    """Yields the rows of each shard of a prepared dataset."""
    names = list(read_shard_counts(root))
    job = ShardJob(root, describe_media=media_filter)
    with scanning(job, names, options) as scans:
        for scan in progress(scans, len(names)) if progress else scans:
            if scan.error:
                raise ShardError(scan.error, scan.shard)
            yield scan.media


def _rows_of_files(root: StoragePath, media_filter: DescribeMedia, num_workers: int) -> Iterator[Sequence[MediaRow]]:
    """Returns the rows of the media files below a folder, some hundred at a time."""
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
    jobs = [names[first : first + FILES_PER_JOB] for first in range(0, len(names), FILES_PER_JOB)]
    describe = functools.partial(_describe, root, media_filter)
    return map_in_order(describe, jobs, useful_workers(root, names, num_workers))


def _describe(root: StoragePath, media_filter: DescribeMedia, names: Sequence[str]) -> list[MediaRow]:
    """Returns the rows of those files that are media; a file that cannot be read has none."""
    rows = []
    for name in names:
        try:
            found = media_filter(name, (root / name).read_bytes)
        except (EnergonDaliError, OSError):
            continue
        if found is not None:
            rows.append((name, *found))
    return rows
