"""Auxiliary files of datasets: stores that read files by name, references to files, and pools that fetch them ahead."""

from __future__ import annotations

from energon_dali.cache.decode_file_store import DecodeFileStore, FileStoreDecoder
from energon_dali.cache.file_cache_pool import FileCacheLazy, FileStoreCachePool
from energon_dali.cache.file_store import FileStore, PrimaryFileStore
from energon_dali.cache.jsonl_file_store import JsonlFileStore
from energon_dali.cache.open_store import open_store, resolve_store
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
from energon_dali.cache.system_file_store import SystemFileStore
from energon_dali.cache.webdataset_file_store import WebdatasetFileStore

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
