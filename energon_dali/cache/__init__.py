"""Auxiliary files of datasets: stores that read files by name, references to files, and pools that fetch them ahead."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from energon_dali.cache.dataset_stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from energon_dali.cache.decode_file_store import DecodeFileStore, FileStoreDecoder, StagingDecoder
from energon_dali.cache.file_cache_pool import FileCacheLazy, FileStoreCachePool
from energon_dali.cache.file_store import FileStore, PrimaryFileStore
from energon_dali.cache.pool import (
    CachePool,
    DirectLazy,
    Lazy,
    MockLazy,
    NoCachePool,
    SettledLazy,
    active_pool,
)
from energon_dali.cache.shard_cache import ShardCache
from energon_dali.errors import ConfigError
from energon_dali.shards import StoragePath

__all__ = [
    "CachePool",
    "DecodeFileStore",
    "DirectLazy",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "JsonlFileStore",
    "Lazy",
    "MockLazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SettledLazy",
    "ShardCache",
    "SystemFileStore",
    "WebdatasetFileStore",
    "active_pool",
    "open_store",
    "resolve_store",
]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


def open_store(
    reference: str | os.PathLike[str] | Mapping[str, Any],
    base: StoragePath | None = None,
    *,
    decoder: FileStoreDecoder | StagingDecoder | None = None,
) -> FileStore[Any]:
    """Returns the store of a reference.

    Args:
        reference: Path or URL of a prepared dataset of tar shards or of a JSONL file; `filesystem://PATH` or
            `filesystem+SCHEME://...` for the files of a folder; or `{"path": ...}` and `{"fs_path": ...}` for the same.
        base: Folder to which relative paths are relative; None is the working directory.
        decoder: Decodes the files; None returns their bytes.

    Raises:
        ConfigError: The reference is invalid.
        DatasetFormatError: The dataset is not prepared.
        StorageError: It cannot be read.
    """
    path, is_folder = resolve_store(reference, base)
    store: FileStore[Any]
    if is_folder:
        store = SystemFileStore(path)
    elif path.name.endswith(".jsonl"):
        store = JsonlFileStore(path)
    else:
        store = WebdatasetFileStore(path)
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def resolve_store(
    reference: str | os.PathLike[str] | Mapping[str, Any], base: StoragePath | None = None
) -> tuple[StoragePath, bool]:
    """Returns (path, whether it is a plain folder) of a reference; arguments as for `open_store`.

    Raises:
        ConfigError: The reference is invalid.
        StorageError: The URL's scheme is not known.
    """
    if isinstance(reference, Mapping):
        names = set(reference)
        if len(names) != 1 or not names <= {"path", "fs_path"}:
            raise _not_understood(reference)
        path, is_folder = reference.get("path", reference.get("fs_path")), "fs_path" in names
    else:
        path, is_folder = reference, False
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise _not_understood(reference)
    text = os.fspath(path)
    url = _URL.fullmatch(text)
    if url is not None and not isinstance(reference, Mapping):
        scheme, rest = url["scheme"].lower(), url["rest"]
        if scheme == "filesystem":
            text, is_folder = rest, True
        elif "+" in scheme:
            kind, _, scheme = scheme.partition("+")
            if kind != "filesystem":
                raise _not_understood(reference)
            text, is_folder = f"{scheme}://{rest}", True
    if not text:
        raise _not_understood(reference)
    if base is None or _URL.fullmatch(text) or os.path.isabs(text) or text.startswith("~"):
        return StoragePath.of(text), is_folder
    joined = base / text
    return (StoragePath.of(joined.url) if joined.is_local else joined), is_folder


def _not_understood(reference: object) -> ConfigError:
    return ConfigError(
        f"{reference!r} does not name a store. Write the path or URL of a prepared dataset, filesystem://PATH or "
        "filesystem+msc://... for the files of a folder, or {path: ...} or {fs_path: ...} for the same."
    )
