"""Prepares the joins of a metadataset: builds missing indices by key, and removes those that nothing uses."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from energon_dali.errors import DatasetError, DatasetFormatError
from energon_dali.metadataset.document import Document, located
from energon_dali.metadataset.join.columns import ColumnFolder, energon_names, open_columns, own_name
from energon_dali.metadataset.join.index_file import FIELDS, JoinIndexFile, write_join_index
from energon_dali.metadataset.reference import SourceReference
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


def build_join_index(columns: Sequence[ColumnFolder], paths: Sequence[StoragePath], location: object) -> int:
    """Writes the index of a join, and returns the number of its rows.

    The rows follow the primary dataset: its shards in the order of the split, its samples in the order of the shards.
    A sample of another dataset does not match if it is not in its split part, or is excluded. Memory does not grow
    with the number of shards.

    Args:
        columns: The datasets, the primary one first.
        paths: Files that receive the index, one copy each.
        location: Where the join is named, for messages.

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
            rows = write_join_index(built, len(columns), _shard_rows(columns, local, databases, location))
        except (*DAMAGE, IndexError, DatasetFormatError) as error:
            raise DatasetFormatError(
                f"{location}: an {SQLITE_NAME} of {', '.join(c.folder.path for c in columns)} is damaged or too old "
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
            f"{path} is missing, and a join needs it to find samples by key. Run `energon-dali prepare "
            f"--tar-index-only {shlex.quote(str(column.folder.path))}`."
        ) from error
    return local


def _shard_rows(
    columns: Sequence[ColumnFolder], sqlites: Sequence[Path], databases: Sequence[SqliteFile], location: object
) -> Iterator[Int64Array]:
    """Yields int64[rows, columns, 3] for each shard of the primary dataset."""
    excluded = [_excluded_samples(column, sqlite) for column, sqlite in zip(columns, sqlites, strict=True)]
    split_indices = [_split_indices(column) for column in columns]
    for shard in columns[0].shards:
        if shard in columns[0].excluded_shards:
            continue
        table = np.full((columns[0].folder.shard_counts[shard], len(columns), FIELDS), -1, np.int64)
        for number, database in enumerate(databases):
            query = _OTHER if number else _OWN
            found = database.execute(query, (shard,)).fetchmany(len(table) + 1)
            whole = all(type(value) is int and value >= -1 for row in found for value in row)
            if len(found) != len(table) or not whole:
                raise ValueError(f"shard {shard} has {len(found)} samples instead of {len(table)}")
            rows = np.array(found, np.int64).reshape(-1, FIELDS)
            missing = split_indices[number][rows[:, 0]] < 0  # a tar file of -1 takes the last entry, which is -1
            if excluded[number]:
                pairs = zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True)
                missing |= np.fromiter((pair in excluded[number] for pair in pairs), bool, len(rows))
            rows[:, 0] = split_indices[number][rows[:, 0]]
            rows[missing] = -1
            table[:, number] = rows
        kept = table[:, 0, 0] >= 0  # without samples that the split of the primary dataset excludes
        for number, column in enumerate(columns[1:], 1):
            lost = kept & (table[:, number, 0] < 0)
            if column.column.nonmatch == "skip":
                kept &= ~lost
            elif column.column.nonmatch == "error" and lost.any():
                raise _no_match(columns, column, databases[0], shard, np.flatnonzero(lost).tolist(), location)
        yield table[kept]


def _split_indices(column: ColumnFolder) -> Int64Array:
    """Returns int64[shards + 1]: each tar file's index in the split part, or -1; the last entry is -1."""
    indices = np.full(len(column.folder.shard_names) + 1, -1, np.int64)
    for index, shard in enumerate(column.shards):
        if shard not in column.excluded_shards:
            indices[shard] = index
    return indices


def _excluded_samples(column: ColumnFolder, sqlite: Path) -> set[tuple[int, int]]:
    """Returns (tar file, offset) of the samples that a split excludes."""
    shards = {name: shard for shard, name in enumerate(column.folder.shard_names)}
    wanted: list[tuple[str, int]] = []
    for entry in column.folder.split.exclude:  # SHARD/KEY, and both may have slashes
        slashes = [at for at, letter in enumerate(entry) if letter == "/" and entry not in shards]
        wanted += [(entry[at + 1 :], shards[entry[:at]]) for at in slashes if entry[:at] in shards]
    if not wanted:
        return set()
    query = "SELECT tar_file_id, byte_offset FROM samples WHERE sample_key = ? AND tar_file_id = ?"
    with closing(SqliteFile(sqlite)) as database:
        return {row for key_and_tar in wanted for row in database.execute(query, key_and_tar).fetchall()}


def _no_match(
    columns: Sequence[ColumnFolder],
    column: ColumnFolder,
    database: SqliteFile,
    shard: int,
    lost: list[int],
    location: object,
) -> DatasetError:
    keys = [key for (key,) in database.execute(_KEYS, (shard,))]
    shown = ", ".join(excerpt(keys[sample]) for sample in lost[:_SHOWN_KEYS])
    primary = columns[0].folder
    return DatasetError(
        f"{location}: {len(lost)} samples of {primary.shard_names[shard]} in {primary.path} have no match in the part "
        f"{column.column.split_part!r} of {column.folder.path}: {shown}{' ...' if len(lost) > _SHOWN_KEYS else ''}. "
        "Add them, or write `nonmatch: skip` (drop the sample) or `nonmatch: none` (join it with None) there."
    )


def prepare_joins(joins: Sequence[SourceReference], document: Document, clean: bool) -> list[str]:
    """Builds the indices that are missing, incomplete or outdated, and returns the paths of all.

    An index is written under this package's name for it, and also under Energon's unless another join of the same
    folder has that name too: Energon's names are the same for all split parts.

    Args:
        joins: The joins.
        document: The metadataset that contains them.
        clean: Remove indices next to it that none of the joins uses.

    Raises:
        DatasetError: Datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    wanted = {}
    for source in joins:
        assert source.join is not None, "only joins are prepared"
        with located(source.location):
            columns = open_columns(source.join.columns)
        wanted[source.join.index_folder / own_name(columns)] = (source, columns)
    foreign = {
        own: StoragePath(own.url.rpartition("/")[0]) / next(energon_names(columns))
        for own, (_, columns) in wanted.items()
    }
    claims = Counter(foreign.values())
    used = []
    for own, (source, columns) in wanted.items():
        names = [own, foreign[own]] if claims[foreign[own]] == 1 else [own]
        used += names
        if not all(JoinIndexFile(name, len(columns)).is_whole() for name in names):
            build_join_index(columns, names, source.location)
    if clean and document.file != "dict":
        folder = StoragePath(f"{document.file}.cache")
        kept = {path.name for path in used if path.url.startswith(f"{folder.url}/")}
        for name in folder.list_files() if folder.is_dir() else []:
            if name.startswith("join_index_") and name.endswith(".bin") and name not in kept:
                (folder / name).remove()
    return [path.url for path in used]
