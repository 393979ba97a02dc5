"""Files by path or URL: local disk, object stores and web servers through obstore.

`register_protocol` adds other kinds of storage.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.shards.storage.atomic_file import writing
from energon_dali.shards.storage.forks import drop_in_child, storage_in_use
from energon_dali.shards.storage.local import LocalBackend
from energon_dali.shards.storage.protocols import (
    PROTOCOLS,
    Backend,
    RangeReader,
    register_protocol,
    unregister_protocol,
)
from energon_dali.shards.storage.retry import with_retries

__all__ = [
    "Backend",
    "RangeReader",
    "StoragePath",
    "register_protocol",
    "storage_in_use",
    "unregister_protocol",
    "with_retries",
]

COPY_BYTES = 8 << 20
"""Bytes per request while a whole file is copied."""
WINDOW_BYTES = 8 << 20
"""Bytes per request of a `WindowReader`."""


@dataclass(frozen=True, slots=True)
class StoragePath:
    """The path of a file or folder; made with `StoragePath.of`.

    Objects are small, picklable and hashable, and hold no connection.
    """

    url: str
    """Absolute local path, or URL without a trailing slash."""

    def __post_init__(self) -> None:
        if "\0" in self.url:
            raise StorageError(f"{self.url[:500]!r} is not a path: it has a zero byte. Correct it where it is written.")

    @classmethod
    def of(cls, path: str | os.PathLike[str] | StoragePath) -> StoragePath:
        """Parses a path or URL; `~` and relative paths are resolved here.

        Args:
            path: A local path, or a URL: file://, s3://, gs://, az://, ais://, msc://, http:// or https://, or one of a
                protocol that `register_protocol` has added; or dss://NAME@VERSION/..., a dataset in the folder that
                `NVDATASET_CACHE_DIR` names.

        Raises:
            StorageError: The path is empty, the scheme of the URL is unknown, or a dss:// path cannot be resolved.
            ConfigError: It is neither text nor a path.
            DatasetFormatError: It is not valid UTF-8, in which paths are stored and printed.
        """
        if isinstance(path, StoragePath):
            return path
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if not isinstance(text, str):
            raise ConfigError(f"{path!r} is not a path. Give a str or a pathlib.Path.")
        if not text:
            raise StorageError("The path is empty. Give the path of a file or folder, such as . for this folder.")
        scheme, separator, _ = text.partition("://")
        if not separator:
            return cls(_checked(os.path.abspath(os.path.expanduser(text))))
        if scheme == "file":
            return cls(_checked(os.path.abspath(unquote(urlsplit(text).path))))
        if scheme == "dss":
            return cls.of(dss_location(text))
        if scheme not in PROTOCOLS:
            raise StorageError(
                f"{text} has the scheme {scheme!r}, which is not known. Use a local path or one of "
                f"{', '.join(f'{known}://' for known in ('file', *PROTOCOLS))}, or add it with register_protocol."
            )
        try:
            urlsplit(text)
        except ValueError as error:
            raise StorageError(f"{text} is not a URL: {error}. Correct its host.") from error
        return cls(_checked(text.rstrip("/")))

    @property
    def is_local(self) -> bool:
        """Whether the file is in the local file system."""
        return "://" not in self.url

    @property
    def name(self) -> str:
        """The last component."""
        return self.url.rpartition("/")[2]

    @property
    def local(self) -> Path:
        """The local path.

        Raises:
            StorageError: The path is not local.
        """
        if not self.is_local:
            raise StorageError(f"{self.url} is not in the local file system. Copy it to a local folder first.")
        return Path(self.url)

    @property
    def quoted(self) -> str:
        """The path or URL as an argument of a command, for messages."""
        return shlex.quote(self.url)

    def __truediv__(self, name: str) -> StoragePath:
        return StoragePath(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    def open(self, size: int | None = None) -> RangeReader:
        """Opens the file for reading at offsets; close it after use.

        Args:
            size: Its size in bytes where it is known, from an index for example. A remote file is then opened without
                a request: if it is not there or has changed, the first read finds out. Local files ignore it.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be opened.
        """
        return self._backend().open(self.url, size)

    def read_bytes(self, max_bytes: int | None = None) -> bytes:
        """Returns the content of the file.

        Args:
            max_bytes: Of a larger file, only the first `max_bytes` + 1 bytes are returned, so that the caller can
                refuse it; None sets no limit.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be read, retries included.
        """
        return self._backend().read_bytes(self.url, max_bytes)

    def read_if_there(self) -> bytes | None:
        """Returns the content of the file, None if there is no such file.

        Raises:
            StorageError: It cannot be read, retries included.
        """
        try:
            return self.read_bytes()
        except FileNotFoundError:
            return None

    def write_bytes(self, content: bytes) -> None:
        """Writes the file; readers see the old content or the new, never a part.

        Raises:
            StorageError: It cannot be written.
        """
        self._backend().write_bytes(self.url, content)

    def write_file(self, local: str | os.PathLike[str]) -> None:
        """Puts a local file here (a local one is moved); readers see the old content or the new, never a part.

        Raises:
            StorageError: It cannot be written.
        """
        self._backend().write_file(self.url, os.fspath(local))

    def copy_to(self, local: Path) -> None:
        """Copies the file to a local path, chunk by chunk.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be read, or the copy cannot be written.
        """
        reader = self.open()
        try:
            with writing(local):
                local.write_bytes(b"")
            for offset in range(0, reader.size, COPY_BYTES):
                data = reader.read_at(offset, COPY_BYTES)
                with writing(local), local.open("ab") as copy:
                    copy.write(data)
        finally:
            reader.close()

    def size(self) -> int:
        """Returns the size of the file in bytes.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: The storage does not answer.
        """
        return self._backend().size(self.url)

    def identity(self) -> tuple[int, str]:
        """Returns what distinguishes this version of the file from others.

        Returns:
            (size in bytes, what the storage calls this version: an ETag, or "" if it has no name for it).

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: The storage does not answer.
        """
        return self._backend().identity(self.url)

    def is_file(self) -> bool:
        """Returns whether there is such a file.

        Raises:
            StorageError: The storage does not answer.
        """
        if self.is_local:
            return os.path.isfile(self.url)
        try:
            self.size()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Returns whether there is such a folder, or any object with that prefix.

        Raises:
            StorageError: The storage does not answer.
        """
        return self._backend().is_dir(self.url)

    def list_files(self) -> list[str]:
        """Returns the paths of all files below this folder, relative to it, sorted.

        Raises:
            StorageError: The storage does not answer, or cannot list files.
        """
        return self._backend().list_files(self.url)

    def remove(self) -> None:
        """Removes the file if it exists.

        Raises:
            StorageError: It cannot be removed.
        """
        self._backend().remove(self.url)

    def _backend(self) -> Backend:
        """Returns the storage of the path.

        Raises:
            StorageError: The protocol of the URL is not registered in this process.
        """
        if self.is_local:
            return LocalBackend()
        backend_of = PROTOCOLS.get(self.url.partition("://")[0])
        if backend_of is None:  # the path came from another process, or the protocol was removed
            raise StorageError(
                f"The protocol of {self.url} is not registered in this process. Call register_protocol in a module "
                "that every process imports, such as that of the task encoder."
            )
        return backend_of(self.url)


def _checked(url: str) -> str:
    """Returns a path or URL that is valid UTF-8.

    Raises:
        DatasetFormatError: It is not.
    """
    try:
        url.encode()
    except UnicodeEncodeError as error:
        raise DatasetFormatError(f"The path {url!r} is not valid UTF-8. Rename the folder or file.") from error
    return url


def dss_location(url: str) -> str:
    """Returns the path or URL of a file of a dataset service: its copy in the folder `NVDATASET_CACHE_DIR`.

    Args:
        url: dss://NAME@VERSION/PATH, which is the file NAME/VERSION/PATH there.

    Raises:
        StorageError: The URL lacks name or version, or leads out of its dataset; or the variable is not set.
    """
    dataset, _, path = url.removeprefix("dss://").partition("/")
    name, _, version = dataset.rpartition("@")
    if not name or not version or {name, version} & {"..", "."} or ".." in path.split("/"):
        raise StorageError(f"{url} should be dss://NAME@VERSION, followed by a path inside that dataset.")
    folder = os.environ.get("NVDATASET_CACHE_DIR")
    if not folder:
        raise StorageError(
            f"{url} is a dataset of a dataset service, which is read from a folder. Set the environment variable "
            "NVDATASET_CACHE_DIR to the folder or URL that holds NAME/VERSION."
        )
    return "/".join(part for part in (folder.rstrip("/"), name, version, path) if part)


class WindowReader:
    """Reads a file from the front in large requests, for callers that take it in small steps. Not thread-safe.

    Args:
        reader: The file.
        window: Bytes per request.
    """

    def __init__(self, reader: RangeReader, window: int = WINDOW_BYTES) -> None:
        self._reader = reader
        self._window = window
        self._start = 0
        self._chunk = b""

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            StorageError: It could not be read, retries included.
        """
        end = offset + size
        if offset < self._start or end > self._start + len(self._chunk):
            self._chunk = self._reader.read_at(offset, max(size, self._window))
            self._start = offset
        return self._chunk[offset - self._start : end - self._start]


class OpenFiles:
    """Keeps the files open that were read last. Thread-safe; each process opens its own, and pickles have none.

    Args:
        most: Number of files that are kept open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.after_fork()
        drop_in_child(self)

    def after_fork(self) -> None:
        """Forgets the files in a forked child, which opens its own."""
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, RangeReader] = OrderedDict()

    def get(self, path: StoragePath) -> RangeReader:
        """Returns an open file.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be opened.
        """
        with self._lock:
            reader = self._readers.get(path.url)
            if reader is not None:
                self._readers.move_to_end(path.url)
                return reader
        opened = path.open()  # outside the lock: a remote file may take long
        with self._lock:
            reader = self._readers.setdefault(path.url, opened)
            if reader is not opened:
                opened.close()
            elif len(self._readers) > self._most:
                # A thread that reads from it keeps what it needs, or opens it again.
                self._readers.popitem(last=False)[1].close()
        return reader

    def close(self) -> None:
        """Closes them; they are opened again when needed."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._most,)
