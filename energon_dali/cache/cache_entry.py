"""One file that a cache pool fetches: its progress and its content."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Hashable
from contextvars import copy_context
from enum import Enum
from pathlib import Path
from typing import Any

import cloudpickle

from energon_dali.cache.file_store import FileStore
from energon_dali.errors import FileMissingError
from energon_dali.samples.base import SourceInfo


class Progress(Enum):
    """The progress of a file."""

    QUEUED = "queued"
    """No thread fetches it yet."""
    FETCHING = "fetching"
    """A thread is fetching it, or waits for room to store it."""
    STORED = "stored"
    """It is on disk."""
    HELD = "held"
    """It is in memory, because it was wanted before there was room on disk."""
    FAILED = "failed"
    """It could not be fetched."""
    DIRECT = "direct"
    """It is not cached: the thread that wants it reads it from its store."""


class CacheEntry:
    """A file, shared by all references to it.

    Args:
        key: Equal for all references to the same file.
        store: Where it is read; None for a value of `to_cache`.
        name: Name of the file.
        decoded: Whether to keep what the store returns, instead of the encoded file.
    """

    __slots__ = (
        "content",
        "context",
        "decoded",
        "digest",
        "error",
        "key",
        "name",
        "path",
        "pickled",
        "progress",
        "references",
        "size",
        "source",
        "store",
        "wanted",
    )

    def __init__(self, key: Hashable, store: FileStore[Any] | None, name: str, *, decoded: bool) -> None:
        self.key = key
        self.store = store
        self.name = name
        self.decoded = decoded
        self.progress = Progress.QUEUED
        self.references = 1
        self.wanted = 0
        """Number of threads that wait for it."""
        self.size = 0
        """Bytes on disk."""
        self.path: Path | None = None
        self.digest = b""
        self.pickled = False
        """Whether the file on disk is a pickle."""
        self.content: Any = None
        self.source: SourceInfo | None = None
        self.error: Exception | None = None
        self.context = copy_context()
        """Context of the thread that asked for it, so that its loader counts the retries."""

    def read_store(self) -> tuple[Any, SourceInfo | None]:
        """Returns (content, where it was read) directly from the store.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """
        if self.store is None:
            raise lost_value(self.name)
        return self.store[self.name] if self.decoded else self.store.read_encoded(self.name)

    def pack(self, content: Any) -> bytes | memoryview:
        """Returns the bytes to write to disk, and records their digest.

        Raises:
            Exception: The error of pickle, if the content cannot be pickled.
        """
        self.pickled = self.decoded or not isinstance(content, (bytes, memoryview))
        packed = dump(content) if self.pickled else content
        self.size = len(packed)
        if self.pickled:
            self.digest = hashlib.blake2b(packed, digest_size=16).digest()
        return packed

    def unpack(self, packed: bytes) -> Any:
        """Returns the content of bytes that were read from disk; only what this process wrote itself is unpickled.

        Raises:
            OSError: They differ from what was written.
        """
        if len(packed) != self.size:
            raise OSError(f"{self.path} has {len(packed)} bytes instead of {self.size}")
        if not self.pickled:
            return packed
        if hashlib.blake2b(packed, digest_size=16).digest() != self.digest:
            raise OSError(f"{self.path} is not what was written")
        return pickle.loads(packed)


def lost_value(name: str) -> FileMissingError:
    """Returns the error for a value of `to_cache` that is no longer there."""
    return FileMissingError(
        f"The cached value {name!r} is gone: its cache pool was closed, or its file was removed. Use it while the "
        "loader runs."
    )


def dump(value: Any) -> bytes:
    """Returns a value as a pickle. Classes of a script are pickled by value, and memoryviews become bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is memoryview:
            return bytes, (bytes(obj),)
        return super().reducer_override(obj)
