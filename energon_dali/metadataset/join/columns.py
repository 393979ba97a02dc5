"""The datasets of a join before samples are read: their folders and splits, and the name of the join index."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product

from energon_dali.errors import DatasetFormatError
from energon_dali.metadataset.join.index_file import JoinIndexFile
from energon_dali.metadataset.reference import JoinColumn, SourceReference
from energon_dali.shards import StoragePath, WebdatasetFolder
from energon_dali.shards.documents.content import read_content
from energon_dali.shards.index.extent_index import MAX_UUID_BYTES, UUID_NAME
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME
from energon_dali.shards.meta.document import META

_TRIED_NAMES = 1000


@dataclass(frozen=True)
class ColumnFolder:
    """One dataset of a join, opened."""

    column: JoinColumn
    """Its options in the metadataset."""
    folder: WebdatasetFolder
    """The dataset."""
    shards: tuple[int, ...]
    """Index in the dataset of each shard that the split part names, in its order, including excluded shards."""
    excluded_shards: frozenset[int]
    """Indices of the shards that the split excludes."""

    @property
    def sample_excludes(self) -> tuple[str, ...]:
        """Excluded entries that have a slash in their names: samples, and shards in folders."""
        return tuple(entry for entry in self.folder.split.exclude if "/" in entry)


def open_columns(
    columns: Sequence[JoinColumn], *, allow_imports: bool = False, allow_code: bool = False
) -> list[ColumnFolder]:
    """Returns the datasets of a join.

    Args:
        columns: The primary one first.
        allow_imports: Import what the datasets name.
        allow_code: Run code that is in the datasets.

    Raises:
        DatasetFormatError: One is not prepared, or its split is damaged.
        ConfigError: One has no such split part.
        StorageError: One cannot be read.
    """
    opened = []
    for column in columns:
        folder = WebdatasetFolder(
            column.path,
            dataset_config=column.dataset_config or DEFAULT_NAME,
            split_config=column.split_config,
            allow_imports=allow_imports,
            allow_code=allow_code,
        )
        numbers = {name: number for number, name in enumerate(folder.shard_names)}
        folder.split_ranges(column.split_part)  # refuses unknown parts and shards
        shards = tuple(numbers[name] for name in folder.split.split_parts[column.split_part])
        excluded = frozenset(numbers[name] for name in folder.split.exclude if name in numbers)
        opened.append(ColumnFolder(column, folder, shards, excluded))
    return opened


def own_name(columns: Sequence[ColumnFolder]) -> str:
    """Returns the name of a join's index: a digest of everything that its content depends on."""
    digest = hashlib.sha256()
    for column, uuid in zip(columns, map(_uuid, columns), strict=True):
        digest.update(f"\0uuid={uuid}\0nonmatch={column.column.nonmatch}\0shards=".encode())
        digest.update("\0".join(column.folder.shard_names[number] for number in column.shards).encode())
        digest.update(("\0exclude=" + "\0".join(sorted(column.folder.split.exclude))).encode())
    return f"join_index_{digest.hexdigest()}.bin"


def energon_names(columns: Sequence[ColumnFolder]) -> Iterator[str]:
    """Yields the names that Energon may have given the index, most likely first.

    Energon's digest runs over a set of the excluded samples, whose order differs from process to process: all orders
    are tried, up to a limit. It ignores the split part, so train and val of one dataset share a name.
    """
    uuids = [_uuid(column) for column in columns]
    orders = product(*(permutations(dict.fromkeys(column.sample_excludes)) for column in columns))
    for excludes in islice(orders, _TRIED_NAMES):
        digest = hashlib.sha256()
        for column, uuid, entries in zip(columns, uuids, excludes, strict=True):
            digest.update(f"\0uuid={uuid}\0excludes=".encode())
            digest.update("".join(f"{entry}\0" for entry in entries).encode())
            digest.update(f"\0nonmatch={column.column.nonmatch}\0".encode())
        yield f"join_index_{digest.hexdigest()}.bin"


def find_join_index(source: SourceReference, columns: Sequence[ColumnFolder]) -> JoinIndexFile:
    """Returns the index of a join, made by this package or by Energon.

    Raises:
        DatasetFormatError: There is none, or it was built for other data.
        StorageError: It cannot be read.
    """
    assert source.join is not None, "only joins have an index"
    folder = source.join.index_folder
    own = folder / own_name(columns)
    if own.is_file():
        return JoinIndexFile(own, len(columns))
    for name in energon_names(columns):
        path = folder / name
        if path.is_file():
            index = JoinIndexFile(path, len(columns))
            _check_rows(columns, index)
            return index
    raise DatasetFormatError(
        f"the join has no index in {folder}, or only one of an older state of its datasets. Run "
        f"`energon-dali prepare {shlex.quote(folder.url.removesuffix('.cache'))}`."
    )


def _check_rows(columns: Sequence[ColumnFolder], index: JoinIndexFile) -> None:
    """Refuses an index of another split part: Energon gives both the same name.

    Raises:
        DatasetFormatError: The index does not fit this split part.
    """
    primary = columns[0]
    counts = primary.folder.shard_counts
    whole = sum(counts[number] for number in primary.shards)
    kept = primary.folder.split_ranges(primary.column.split_part).num_samples
    rows = len(index.table)
    skips = any(column.column.nonmatch == "skip" for column in columns)
    fits = rows <= whole if skips else kept <= rows <= whole
    if not fits or (rows and int(index.table[-1, 0, 0]) >= len(primary.shards)):
        raise DatasetFormatError(
            f"{index.path} joins {rows} samples, and the part {primary.column.split_part!r} of "
            f"{primary.folder.path} has {kept}. It is the index of another part or state: run `energon-dali prepare "
            f"{shlex.quote(index.path.url.rpartition('.cache/')[0])}`."
        )


def _uuid(column: ColumnFolder) -> str:
    """Returns the identity of a dataset's index, unchanged from its file.

    Raises:
        DatasetFormatError: It has none.
        StorageError: It cannot be read.
    """
    path: StoragePath = column.folder.root / META / UUID_NAME
    content = read_content(path, MAX_UUID_BYTES)
    if content is None:
        raise DatasetFormatError(
            f"{path} is missing, and a join identifies its datasets by it. Run `energon-dali prepare --tar-index-only "
            f"{shlex.quote(str(column.folder.path))}`."
        )
    return content.decode("utf-8", "replace")
