"""Describes the media of a plain folder, so that a store of its files knows their sizes before they are decoded."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path

from energon_dali.errors import DatasetFormatError, EnergonDaliError
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.index.sqlite_index import MediaRow, SqliteWriter
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import refuse_meta
from energon_dali.shards.prepare.building import building_folder, useful_workers
from energon_dali.shards.prepare.media_metadata import MediaFilter
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.storage import StoragePath

FILES_PER_JOB = 256


def add_folder_media(
    root: StoragePath, media_filter: MediaFilter, *, num_workers: int = 1, tmp_path: Path | None = None
) -> int:
    """Describes the media below a folder in the table `media_metadata` of its `.nv-meta`; returns how many there are.

    Names in the table are paths below the folder. Entries of before stay where they are not described anew.

    Args:
        root: The folder.
        media_filter: Which files.
        num_workers: Processes, at most.
        tmp_path: Folder in which the table is built before it takes its place.

    Raises:
        DatasetFormatError: There is no such folder, or it holds tar shards, which have to be prepared first.
        StorageError: It cannot be listed, or the table not written.
    """
    refuse_meta(root)
    if not root.is_dir():
        raise DatasetFormatError(f"{root} is no folder. Give a prepared dataset, or a folder of media files.")
    names = [name for name in root.list_files() if not name.startswith(f"{META}/") and f"/{META}/" not in name]
    shards = [name for name in names if name.endswith(".tar")]
    if shards:
        raise DatasetFormatError(
            f"{root} holds tar shards such as {shards[0]} and is not prepared. Run `energon-dali prepare "
            f"{shlex.quote(str(root))}` first."
        )
    jobs = [names[first : first + FILES_PER_JOB] for first in range(0, len(names), FILES_PER_JOB)]
    described = 0
    with building_folder(root, tmp_path) as folder:
        copy = folder / SQLITE_NAME
        try:
            (root / META / SQLITE_NAME).copy_to(copy)
        except FileNotFoundError:
            copy.unlink(missing_ok=True)
        with SqliteWriter(copy, samples=False, media=True) as tables:
            workers = useful_workers(root, names, num_workers)
            for rows in map_in_order(functools.partial(_describe, root, media_filter), jobs, workers):
                tables.add_media(rows)
                described += len(rows)
            tables.add_media_filter(media_filter.strategy, ",".join(media_filter.patterns))
        (root / META / SQLITE_NAME).write_file(copy)
    return described


def _describe(root: StoragePath, media_filter: MediaFilter, names: Sequence[str]) -> list[MediaRow]:
    """Returns the rows of those files that are media; one that cannot be read has none."""
    rows = []
    for name in names:
        try:
            found = media_filter(name, (root / name).read_bytes)
        except (EnergonDaliError, OSError):
            continue
        if found is not None:
            rows.append((name, *found))
    return rows
