"""Adds descriptions of media to a dataset that is prepared already."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from energon_dali.errors import DatasetFormatError, ShardError
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import info_present, read_shard_counts
from energon_dali.shards.prepare.building import building_folder, useful_workers
from energon_dali.shards.prepare.media_folder import add_folder_media
from energon_dali.shards.prepare.media_metadata import MediaFilter
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, index_shard
from energon_dali.shards.storage import StoragePath


def add_media_metadata(
    path: str | StoragePath,
    media_filter: MediaFilter,
    *,
    num_workers: int = 1,
    tmp_path: Path | None = None,
    progress: Callable[[Iterable[ShardScan], int], Iterable[ShardScan]] | None = None,
) -> int:
    """Describes the media of a prepared dataset in the table `media_metadata`, and returns how many there are.

    A plain folder, without shards, gets a table of its files.

    Entries of before stay where they are not described anew. The rest of the index does not change.

    Args:
        path: Folder of the dataset.
        media_filter: Which media.
        num_workers: Processes; see `prepare_dataset`.
        tmp_path: Folder in which the table is built before it takes its place.
        progress: Shows how far it is.

    Raises:
        DatasetFormatError: The dataset is not prepared.
        ShardError: Shards are damaged.
        StorageError: Something cannot be read or written.
    """
    root = StoragePath.of(path)
    if not info_present(root):
        return add_folder_media(root, media_filter, num_workers=num_workers, tmp_path=tmp_path)
    names = list(read_shard_counts(root))
    job = ShardJob(root, describe_media=media_filter)
    scans = map_in_order(functools.partial(index_shard, job), names, useful_workers(root, names, num_workers))
    described = 0
    with building_folder(root, tmp_path) as folder:
        copy = folder / SQLITE_NAME
        try:
            (root / META / SQLITE_NAME).copy_to(copy)
        except FileNotFoundError as error:
            message = f"{root} has no {META}/{SQLITE_NAME}. Run `energon-dali prepare {shlex.quote(str(root))}` first."
            raise DatasetFormatError(message) from error
        with SqliteWriter(copy, samples=False, media=True) as tables:
            for scan in progress(scans, len(names)) if progress else scans:
                if scan.error:
                    raise ShardError(scan.error, scan.shard)
                tables.add_media(scan.media)
                described += len(scan.media)
            tables.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
        (root / META / SQLITE_NAME).write_file(copy)
    return described
