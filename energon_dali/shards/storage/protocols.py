"""Storage protocols by the scheme of the URL, and what the storage of a protocol must be able to do.

To add a protocol to this package, write a module with a `Backend` and list the scheme in `PROTOCOLS`. A package outside
this one calls `register_protocol`. Everything else asks the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from energon_dali.errors import ConfigError


class RangeReader(Protocol):
    """An open file that is read at offsets, from any thread."""

    size: int
    """Size of the file in bytes when it was opened; of a remote file, the size that `open` was given, if any."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            FileNotFoundError: The file is no longer there.
            StorageError: It could not be read, retries included.
        """

    def read_view(self, offset: int, size: int) -> bytes | memoryview:
        """Returns what `read_at` does, or a view of memory that does not change while a view of it is left."""

    def close(self) -> None:
        """Closes the file."""


@runtime_checkable
class VersionedReader(RangeReader, Protocol):
    """A reader that checks which version of a file each of its responses belongs to."""

    expected_tag: str
    """Raise VersionChangedError for a response of a version other than this ETag; "" accepts any."""


class Backend(Protocol):
    """A kind of storage; every method takes a complete path or URL.

    Methods that read raise FileNotFoundError if there is no such file. Other failures are StorageErrors.
    """

    def open(self, url: str, size: int | None = None) -> RangeReader:
        """Opens the file for reading; for a remote file of known size, no request is sent before the first read."""

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        """Returns the content of a file; of one larger than `max_bytes`, its first `max_bytes` + 1 bytes."""

    def write_bytes(self, url: str, content: bytes) -> None:
        """Writes a file; readers see the old content or the new, never a part."""

    def write_file(self, url: str, local: str) -> None:
        """Moves or uploads a local file to `url`; readers see the old content or the new, never a part."""

    def size(self, url: str) -> int:
        """Returns the size of a file in bytes."""

    def identity(self, url: str) -> tuple[int, str]:
        """Returns the size of a file in bytes, and what its storage calls this version of it."""

    def is_dir(self, url: str) -> bool:
        """Returns whether there is such a folder, or any object with that prefix."""

    def list_files(self, url: str) -> list[str]:
        """Returns the paths of all files below a folder, relative to it, sorted."""

    def remove(self, url: str) -> None:
        """Removes a file if it exists."""


def _web_server(url: str) -> Backend:
    from energon_dali.shards.storage.objects import WebBackend

    return WebBackend()


def _bucket(url: str) -> Backend:
    from energon_dali.shards.storage.msc import is_mapped

    if is_mapped(url):
        return _profile(url)
    from energon_dali.shards.storage.objects import ObjectBackend

    return ObjectBackend()


def _profile(url: str) -> Backend:
    from energon_dali.shards.storage.msc import MscBackend

    return MscBackend()


# Their modules are imported when needed, so that a local dataset does not pay for importing a client library.
PROTOCOLS: dict[str, Callable[[str], Backend]] = {
    "s3": _bucket,
    "gs": _bucket,
    "az": _bucket,
    "ais": _profile,
    "msc": _profile,
    "http": _web_server,
    "https": _web_server,
}
"""Functions that return the backend of a URL, by its scheme."""
_RESERVED = ("file", "dss", "filesystem")
"""Schemes that stand for a local path, or come before a path or URL."""


def register_protocol(scheme: str, backend: Backend) -> None:
    """Adds a storage protocol: files whose URL begins with `SCHEME://` are read from and written to `backend`.

    Call it before the first such URL is used, in every process. A forked worker inherits it. Any other process imports
    the modules of what it is sent, so a call at the top of the task encoder's module reaches it.

    Args:
        scheme: Lower-case letters and digits, such as "hdfs".
        backend: The storage. Several threads call it at the same time. A forked child uses a copy of it, which must
            open connections of its own where they do not survive a fork.

    Raises:
        ConfigError: The scheme is invalid or in use. To replace a protocol, call `unregister_protocol` first.
    """
    if not re.fullmatch("[a-z][a-z0-9]*", scheme):
        raise ConfigError(f'The scheme {scheme!r} is invalid. Give lower-case letters and digits, such as "hdfs".')
    if scheme in _RESERVED:
        raise ConfigError(f"The scheme {scheme!r} has a meaning of its own. Give another one.")
    if scheme in PROTOCOLS:
        raise ConfigError(
            f"The scheme {scheme!r} is in use. Give another one, or call unregister_protocol({scheme!r}) first."
        )
    PROTOCOLS[scheme] = lambda url: backend


def unregister_protocol(scheme: str) -> None:
    """Removes a storage protocol if there is one of this scheme."""
    PROTOCOLS.pop(scheme, None)
