"""The small files that the datasets of a metadataset need when they are opened, so that all are fetched at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from energon_dali.errors import DatasetError, DatasetFormatError, StorageError, UntrustedCodeError
from energon_dali.metadataset.document import YAML_SUFFIXES, Document, read_document
from energon_dali.metadataset.join.columns import ColumnFolder, find_join_index, open_columns
from energon_dali.metadataset.join.index_file import JoinIndexFile
from energon_dali.metadataset.reference import SourceReference
from energon_dali.plan.slices import Slices
from energon_dali.shards import StoragePath, WebdatasetFolder
from energon_dali.shards.documents.opening import Opening, Wanted
from energon_dali.shards.folder import files_of_folder
from energon_dali.shards.index.extent_index import UUID_NAME
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import INFO_NAMES


def files_of_source(source: SourceReference, *, allow_code: bool = False) -> Iterator[Wanted]:
    """Yields the files that opening a dataset or join takes; none of a JSONL file, which has only its index."""
    if source.join is not None:
        for column in source.join.columns:
            root, config = StoragePath.of(column.path), column.dataset_config or DEFAULT_NAME
            yield from files_of_folder(root, config, column.split_config, allow_code=allow_code)
            yield Wanted((root / META / UUID_NAME,))  # the name of the join's index depends on it
    elif not source.is_jsonl:
        root, config = StoragePath.of(source.path), source.dataset_config or DEFAULT_NAME
        yield from files_of_folder(root, config, source.split_config, allow_code=allow_code)


def files_of_stores(source: SourceReference) -> Iterator[Wanted]:
    """Yields the files that opening the auxiliary stores of a dataset takes."""
    for store in source.aux.values():
        if store.kind == "dataset" and not store.path.endswith(".jsonl"):
            root = StoragePath.of(store.path)
            yield Wanted(tuple(root / META / name for name in INFO_NAMES))


def is_local(source: SourceReference) -> bool:
    """Returns whether all files of a dataset or join are local."""
    if source.join is None:
        return StoragePath.of(source.path).is_local
    folders = [StoragePath.of(column.path) for column in source.join.columns]
    return source.join.index_folder.is_local and all(folder.is_local for folder in folders)


def read_folder_files(
    source: SourceReference, *, allow_imports: bool = False, allow_code: bool = False
) -> tuple[WebdatasetFolder, Slices]:
    """Returns (a folder, whose small files are read; the samples of its split part).

    The extents are read only if its split excludes single samples.

    Raises:
        DatasetFormatError: The folder is not prepared, or its split is damaged.
        ConfigError: It has no such split part.
        StorageError: It cannot be read.
    """
    folder = WebdatasetFolder(
        source.path,
        dataset_config=source.dataset_config or DEFAULT_NAME,
        split_config=source.split_config,
        allow_imports=allow_imports,
        allow_code=allow_code,
    )
    with suppress(DatasetError, UntrustedCodeError, StorageError):  # raised when its content is asked for
        _ = folder.dataset_config
    return folder, folder.split_ranges(source.split_part)


def read_join_files(
    source: SourceReference, *, allow_imports: bool = False, allow_code: bool = False
) -> tuple[list[ColumnFolder], JoinIndexFile]:
    """Returns (the datasets of a join, the primary one first; its index, which is read).

    Raises:
        DatasetFormatError: A dataset is not prepared, or its split is damaged, or there is no index that can be used.
        ConfigError: A dataset has no such split part.
        StorageError: A dataset or the index cannot be read.
    """
    assert source.join is not None, "only joins have these files"
    columns = open_columns(source.join.columns, allow_imports=allow_imports, allow_code=allow_code)
    index = find_join_index(source, columns)
    _ = index.table
    return columns, index


def read_nested(document: Document, split_part: str, opening: Opening, limit: int) -> dict[str, Document]:
    """Returns the remote metadatasets below a metadataset, by URL, each level of them fetched at once.

    Mistakes are left to whoever resolves the metadataset: a file that cannot be read is left out.

    Args:
        document: The metadataset.
        split_part: Part of its splits.
        opening: Fetches the files.
        limit: Number of files after which it stops.
    """
    found: dict[str, Document] = {}
    level = list(_nested_paths(document, split_part))
    seen: set[tuple[StoragePath, str]] = set()
    while level:
        new = {path: part for path, part in level if (path, part) not in seen and not path.is_local}
        seen.update(new.items())
        opening.ahead(Wanted((path,)) for path in new)
        level = []
        for path, part in new.items():
            if len(seen) > limit:
                return found
            try:
                inner = found.get(path.url) or read_document(path)
            except (DatasetFormatError, StorageError):
                continue
            found[path.url] = inner
            level += _nested_paths(inner, part)
    return found


def _nested_paths(document: Document, split_part: str) -> Iterable[tuple[StoragePath, str]]:
    """Yields (path, split part) of the metadatasets that a metadataset seems to name."""
    split = document.root.at("splits", split_part)
    nodes = [split]
    for kind in ("datasets", "blend", "blend_epochized", "concat"):
        entries = split.at(kind)
        if isinstance(entries.value, list):
            nodes += [entries.at(number) for number in range(len(entries.value))]
    for node in nodes:
        path, part = node.at("path").value, node.at("split_part").value
        if isinstance(path, str) and path.endswith(YAML_SUFFIXES):
            try:
                yield node.resolve_path(path), part if isinstance(part, str) else split_part
            except DatasetFormatError:
                continue
