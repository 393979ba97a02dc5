"""Object stores, through multi-storage-client: s3://, gs://, ais:// and profiles of its own configuration, msc://."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from energon_dali.errors import StorageError
from energon_dali.shards.storage.retry import with_retries
from energon_dali.shards.storage.store import store_of

T = TypeVar("T")


class RemoteReader:
    """An object in a bucket, read by ranges.

    Args:
        url: Its URL.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: The store does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client, self._path = resolve(url)
        self._store = store_of(url)
        self.size = int(_ask(lambda: self._client.info(self._path), "look at", url).content_length)

    def read_at(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset)  # a server refuses a range that begins at the end
        if size <= 0:
            return b""
        data = _ask(lambda: self._fetch(offset, size), f"read bytes {offset} to {offset + size} of", self.url)
        self._store.succeeded(self.url, self._probe, offset)
        return data

    def _fetch(self, offset: int, size: int) -> bytes:
        from multistorageclient.types import Range

        return bytes(self._client.read(self._path, byte_range=Range(offset=offset, size=size)))

    def _probe(self, offset: int) -> None:
        self._fetch(offset, 1)

    def close(self) -> None:
        """Does nothing: the connections belong to the shared client."""


class RemoteBackend:
    """Objects in a bucket."""

    def open(self, url: str) -> RemoteReader:
        return RemoteReader(url)

    def read_bytes(self, url: str) -> bytes:
        client, path = resolve(url)
        return bytes(_ask(lambda: client.read(path), "read", url))

    def write_bytes(self, url: str, content: bytes) -> None:
        client, path = resolve(url)
        _ask(lambda: client.write(path, content), "write", url)

    def write_file(self, url: str, local: str) -> None:
        client, path = resolve(url)
        _ask(lambda: client.upload_file(path, local), "upload", url)

    def size(self, url: str) -> int:
        client, path = resolve(url)
        return int(_ask(lambda: client.info(path), "look at", url).content_length)

    def is_dir(self, url: str) -> bool:
        client, path = resolve(url)
        prefix = path.rstrip("/") + "/"
        return _ask(lambda: any(True for _ in client.list(path=prefix)), "list", url)

    def list_files(self, url: str) -> list[str]:
        client, path = resolve(url)
        prefix = path.rstrip("/") + "/" if path else ""
        found = _ask(lambda: [item.key for item in client.list(path=prefix)], "list", url)
        return sorted(key.removeprefix(prefix) for key in found if key.startswith(prefix))

    def remove(self, url: str) -> None:
        client, path = resolve(url)

        def delete() -> None:
            try:
                client.delete(path)
            except FileNotFoundError:
                return

        _ask(delete, "remove", url)


def resolve(url: str) -> tuple[Any, str]:
    """Returns the client of a URL (cached per process, recreated after a fork) and the path inside it.

    Raises:
        StorageError: No client can be created for it.
    """
    from multistorageclient.shortcuts import resolve_storage_client

    try:
        client, path = resolve_storage_client(url)
    except Exception as error:
        raise StorageError(
            f"Could not reach {url}: {type(error).__name__}: {error}. Check the URL, and the configuration of "
            "multi-storage-client."
        ) from error
    return client, path


def _ask(call: Callable[[], T], doing: str, url: str) -> T:
    """Calls `call` with retries, and returns its result.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: Every attempt failed.
    """
    from multistorageclient.types import RetryableError

    def attempt() -> T:
        try:
            return call()
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, (RuntimeError, RetryableError)) and not isinstance(error, NotImplementedError):
                # Raised for every error response of a server, and for broken connections.
                raise ConnectionError(str(error)) from error
            raise StorageError(
                f"Could not {doing} {url}: {type(error).__name__}: {error}. Check the URL, and the configuration of "
                "multi-storage-client."
            ) from error

    return with_retries(attempt, doing, url)
