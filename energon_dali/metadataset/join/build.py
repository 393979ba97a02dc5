"""Builds the index of a join, by the keys in the datasets' `index.sqlite`."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from energon_dali.errors import DatasetError, DatasetFormatError
from energon_dali.metadataset.join.columns import ColumnFolder
from energon_dali.metadataset.join.index_file import FIELDS, write_join_index
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.sqlite_file import DAMAGE, SqliteFile
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.meta.document import META

_SHOWN_KEYS = 5
_OWN = "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
_OTHER = (
    "SELECT COALESCE(o.tar_file_id, -1), COALESCE(o.byte_offset, -1), COALESCE(o.byte_size, -1) FROM samples p "
    "LEFT JOIN other.samples o ON o.sample_key = p.sample_key WHERE p.tar_file_id = ? ORDER BY p.sample_index"
)
_KEYS = "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"


def build_join_index(columns: Sequence[ColumnFolder], paths: Sequence[StoragePath], place: object) -> int:
    """Writes the index of a join, and returns the number of its rows.

    The rows follow the primary dataset: its shards in the order of the split, its samples in the order of the shards.
    A sample of another dataset that its split part does not hold, or excludes, is no match. Memory is flat in the
    number of shards.

    Args:
        columns: The datasets, the primary one first.
        paths: Where the index goes, under each of these names.
        place: Where the join is named, for messages.

    Raises:
        DatasetError: A primary sample has no match, and nonmatch is "error".
        DatasetFormatError: A dataset has no index by key, or it is damaged.
        StorageError: A file cannot be read or written.
    """
    with tempfile.TemporaryDirectory(prefix="energon-dali-join-") as folder, ExitStack() as stack:
        local = [_local_sqlite(column, Path(folder), number) for number, column in enumerate(columns)]
        built = Path(folder) / "index.bin"
        try:
            databases = [stack.enter_context(closing(SqliteFile(local[0])))]
            databases += [stack.enter_context(closing(SqliteFile(local[0], other))) for other in local[1:]]
            rows = write_join_index(built, len(columns), _blocks(columns, local, databases, place))
        except (*DAMAGE, IndexError, DatasetFormatError) as error:
            raise DatasetFormatError(
                f"{place}: an {SQLITE_NAME} of {', '.join(c.folder.path for c in columns)} is damaged or too old "
                f"({str(error)[:300]}). Run `energon-dali prepare --tar-index-only` on the datasets."
            ) from error
        for path in paths:
            if path.is_local:
                path.local.parent.mkdir(parents=True, exist_ok=True)
            copy = Path(folder) / f"copy of {path.name}"
            try:
                os.link(built, copy)
            except OSError:  # file systems without hard links
                shutil.copyfile(built, copy)
            path.write_file(copy)
    return rows


def _local_sqlite(column: ColumnFolder, folder: Path, number: int) -> Path:
    path = column.folder.root / META / SQLITE_NAME
    local = path.local if path.is_local else folder / f"{number}.sqlite"
    try:
        if not path.is_local:
            path.copy_to(local)
        elif not path.is_file():
            raise FileNotFoundError(path.url)
    except FileNotFoundError as error:
        raise DatasetFormatError(
            f"{path} is missing, in which a join finds samples by key. Run `energon-dali prepare --tar-index-only "
            f"{shlex.quote(str(column.folder.path))}`."
        ) from error
    return local


def _blocks(
    columns: Sequence[ColumnFolder], sqlites: Sequence[Path], databases: Sequence[SqliteFile], place: object
) -> Iterator[Int64Array]:
    """Yields int64[rows, columns, 3] for each shard of the primary dataset."""
    excluded = [_excluded_samples(column, sqlite) for column, sqlite in zip(columns, sqlites, strict=True)]
    places = [_places(column) for column in columns]
    for number in columns[0].shards:
        if number in columns[0].excluded_shards:
            continue
        table = np.full((columns[0].folder.shard_counts[number], len(columns), FIELDS), -1, np.int64)
        for place_of_column, database in enumerate(databases):
            query = _OTHER if place_of_column else _OWN
            found = database.execute(query, (number,)).fetchmany(len(table) + 1)
            whole = all(type(value) is int and value >= -1 for row in found for value in row)
            if len(found) != len(table) or not whole:
                raise ValueError(f"shard {number} has {len(found)} samples in place of {len(table)}")
            rows = np.array(found, np.int64).reshape(-1, FIELDS)
            missing = places[place_of_column][rows[:, 0]] < 0  # a tar file of -1 takes the last entry, which is -1
            if excluded[place_of_column]:
                pairs = zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True)
                missing |= np.fromiter((pair in excluded[place_of_column] for pair in pairs), bool, len(rows))
            rows[:, 0] = places[place_of_column][rows[:, 0]]
            rows[missing] = -1
            table[:, place_of_column] = rows
        kept = table[:, 0, 0] >= 0  # without what the split of the primary dataset excludes
        for place_of_column, column in enumerate(columns[1:], 1):
            lost = kept & (table[:, place_of_column, 0] < 0)
            if column.column.nonmatch == "skip":
                kept &= ~lost
            elif column.column.nonmatch == "error" and lost.any():
                raise _no_match(columns, column, databases[0], number, np.flatnonzero(lost).tolist(), place)
        yield table[kept]


def _places(column: ColumnFolder) -> Int64Array:
    """Returns int64[shards + 1]: the place of each tar file in the split part, -1 where it has none; -1 at the end."""
    places = np.full(len(column.folder.shard_names) + 1, -1, np.int64)
    for place, number in enumerate(column.shards):
        if number not in column.excluded_shards:
            places[number] = place
    return places


def _excluded_samples(column: ColumnFolder, sqlite: Path) -> set[tuple[int, int]]:
    """Returns (tar file, offset) of the samples that a split excludes."""
    numbers = {name: number for number, name in enumerate(column.folder.shard_names)}
    wanted: list[tuple[str, int]] = []
    for entry in column.folder.split.exclude:  # SHARD/KEY, and both may hold slashes
        slashes = [at for at, letter in enumerate(entry) if letter == "/" and entry not in numbers]
        wanted += [(entry[at + 1 :], numbers[entry[:at]]) for at in slashes if entry[:at] in numbers]
    if not wanted:
        return set()
    query = "SELECT tar_file_id, byte_offset FROM samples WHERE sample_key = ? AND tar_file_id = ?"
    with closing(SqliteFile(sqlite)) as database:
        return {row for key_and_tar in wanted for row in database.execute(query, key_and_tar).fetchall()}


def _no_match(
    columns: Sequence[ColumnFolder],
    column: ColumnFolder,
    database: SqliteFile,
    number: int,
    lost: list[int],
    place: object,
) -> DatasetError:
    keys = [key for (key,) in database.execute(_KEYS, (number,))]
    shown = ", ".join(excerpt(keys[sample]) for sample in lost[:_SHOWN_KEYS])
    primary = columns[0].folder
    return DatasetError(
        f"{place}: {len(lost)} samples of {primary.shard_names[number]} in {primary.path} have no match in the part "
        f"{column.column.split_part!r} of {column.folder.path}: {shown}{' ...' if len(lost) > _SHOWN_KEYS else ''}. "
        "Add them, or write `nonmatch: skip` (leave the sample out) or `nonmatch: none` (join it with None) there."
    )
