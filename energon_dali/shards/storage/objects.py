"""Objects in buckets and files on web servers, through obstore: s3://, gs://, az://, http:// and https://."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from energon_dali.errors import StorageError
from energon_dali.shards.storage.buckets import PIECE_BYTES, SMALL_BYTES, open_bucket
from energon_dali.shards.storage.retry import RemoteReader, with_retries
from energon_dali.shards.storage.store import VersionChangedError, changed_text

_Data = TypeVar("_Data", bytes, "bytes | memoryview")

_PART_BYTES = 16 << 20
"""Larger files are uploaded in parts of this size."""
_MAX_PARTS = 9_000
"""Stores allow 10,000 parts."""
_VIEW_BYTES = 32 << 10
"""Smaller responses are copied: they may be part of a buffer of the connection, which a view would keep in memory."""
_ENDS_BEFORE = ("416 Range Not Satisfiable", "StartTooLarge")
"""In errors of obstore about a range that begins at the end of the object or after it."""
_UPLOADS = 4
"""Parts of a file that are uploaded at the same time."""


class ObjectReader(RemoteReader):
    """An object in a bucket or a file on a web server, read by ranges. Thread-safe.

    Args:
        url: Its URL.
        size: Its size in bytes; None asks the store.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: The store does not answer, or refuses.
    """

    def __init__(self, url: str, size: int | None = None) -> None:
        super().__init__(url, ObjectBackend().size(url) if size is None else size)
        self._bucket, self._key = open_bucket(url)
        self.expected_tag = ""

    def read_view(self, offset: int, size: int) -> bytes | memoryview:
        end = min(offset + size, self.size)
        if end - offset <= PIECE_BYTES:
            return super().read_view(offset, size)
        starts = range(offset, end, PIECE_BYTES)
        return b"".join(super(ObjectReader, self).read_view(start, min(PIECE_BYTES, end - start)) for start in starts)

    def _fetch(self, offset: int, size: int) -> bytes | memoryview:
        return self._bucket.call(_get_range, self.url, self, offset, size, is_large=size > SMALL_BYTES)


class ObjectBackend:
    """Objects in buckets."""

    def open(self, url: str, size: int | None = None) -> ObjectReader:
        return ObjectReader(url, size)

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        largest = SMALL_BYTES if max_bytes is None else min(SMALL_BYTES, max_bytes)
        found = _ask(_get, "read", url, largest)
        if isinstance(found, bytes):
            return found
        return ObjectReader(url, found).read_at(0, found if max_bytes is None else min(found, max_bytes + 1))

    def write_bytes(self, url: str, content: bytes) -> None:
        _ask(_put, "write", url, content, is_large=True)

    def write_file(self, url: str, local: str) -> None:
        _ask(_put, "upload", url, Path(local), is_large=True)

    def size(self, url: str) -> int:
        return self.identity(url)[0]

    def identity(self, url: str) -> tuple[int, str]:
        found: tuple[int, str] = _ask(_head, "look at", url)
        return found

    def is_dir(self, url: str) -> bool:
        return bool(_ask(_has_objects, "list", url))

    def list_files(self, url: str) -> list[str]:
        found: list[str] = _ask(_list, "list", url)
        return sorted(found)

    def remove(self, url: str) -> None:
        _ask(_delete, "remove", url)


class WebBackend(ObjectBackend):
    """Files on web servers, which are only read."""

    def is_dir(self, url: str) -> bool:
        return True  # a web server has no folders; files below are requested by name

    def list_files(self, url: str) -> list[str]:
        raise StorageError(
            f"{url} cannot be listed: http has no folders. Prepare the dataset where its files are stored, then serve "
            "it."
        )

    def write_bytes(self, url: str, content: bytes) -> None:
        raise StorageError(
            f"{url} cannot be written: http is read only. Prepare the dataset where its files are stored, then serve "
            "it."
        )

    def write_file(self, url: str, local: str) -> None:
        self.write_bytes(url, b"")

    def remove(self, url: str) -> None:
        self.write_bytes(url, b"")


def _ask(request: Any, doing: str, url: str, *arguments: Any, is_large: bool = False) -> Any:
    """Sends a request with retries, and returns its result."""
    bucket, key = open_bucket(url)
    return with_retries(lambda: bucket.call(request, url, key, *arguments, is_large=is_large), doing, url)


def _get_range(obstore: Any, store: Any, reader: ObjectReader, offset: int, size: int) -> bytes | memoryview:
    """Returns a range of an object; a large one as a view of the response.

    Raises:
        StorageError: The object has another size than it had.
        VersionChangedError: It is another version than the reader expects.
        ConnectionError: The response is incomplete.
    """
    try:
        response = obstore.get(store, reader._key, options={"range": (offset, offset + size)})
        total = response.meta["size"]
    except Exception as error:
        if not any(sign in str(error) for sign in _ENDS_BEFORE):
            raise
        total = obstore.head(store, reader._key)["size"]
        if total == reader.size:
            raise ConnectionError(f"the server refuses bytes {offset} to {offset + size} of {total}") from error
    if total != reader.size:
        raise StorageError(changed_text(reader.url, total, reader.size))
    found = response.meta["e_tag"]
    if reader.expected_tag and found and found != reader.expected_tag:
        raise VersionChangedError(f"{reader.url} was replaced while it was being read.")
    content = response.bytes()
    data = _complete(memoryview(content) if size >= _VIEW_BYTES else bytes(content), size)
    reader._bucket.has_ranges = True
    return data


def _get(obstore: Any, store: Any, key: str, largest: int) -> bytes | int:
    """Returns the content of an object; of one that is larger than `largest`, its size."""
    response = obstore.get(store, key)
    size = int(response.meta["size"])
    return size if size > largest else _complete(bytes(response.bytes()), size)


def _complete(data: _Data, size: int) -> _Data:
    if len(data) != size:
        raise ConnectionError(f"the response ended after {len(data)} of {size} bytes")
    return data


def _put(obstore: Any, store: Any, key: str, content: bytes | Path) -> None:
    size = len(content) if isinstance(content, bytes) else os.path.getsize(content)
    part = max(_PART_BYTES, -(-size // _MAX_PARTS))
    obstore.put(store, key, content, use_multipart=size > _PART_BYTES, chunk_size=part, max_concurrency=_UPLOADS)


def _head(obstore: Any, store: Any, key: str) -> tuple[int, str]:
    found = obstore.head(store, key)
    changed = found["last_modified"]
    return int(found["size"]), str(found["e_tag"] or (changed if changed.timestamp() else ""))


def _has_objects(obstore: Any, store: Any, key: str) -> bool:
    return any(page for page in obstore.list(store, prefix=key or None))


def _list(obstore: Any, store: Any, key: str) -> list[str]:
    start = len(key) + 1 if key else 0
    return [item["path"][start:] for page in obstore.list(store, prefix=key or None) for item in page]


def _delete(obstore: Any, store: Any, key: str) -> None:
    try:
        obstore.delete(store, key)
    except FileNotFoundError:
        return
