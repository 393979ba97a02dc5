"""Object stores through multi-storage-client: profiles of its configuration (msc://), and ais://.

Its configuration may also map other URLs to profiles (`path_mapping`); these are read through it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar

from energon_dali.errors import StorageError
from energon_dali.shards.storage.forks import mark_in_use
from energon_dali.shards.storage.retry import RemoteReader, with_retries

T = TypeVar("T")


class MscReader(RemoteReader):
    """An object in a bucket, read by ranges.

    Args:
        url: Its URL.
        size: Its size in bytes; None asks the store.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: The store does not answer.
    """

    def __init__(self, url: str, size: int | None = None) -> None:
        super().__init__(url, MscBackend().size(url) if size is None else size)
        self._client, self._path = resolve(url)

    def _fetch(self, offset: int, size: int) -> bytes:
        from multistorageclient.types import Range

        with _translated("read", self.url):
            return bytes(self._client.read(self._path, byte_range=Range(offset=offset, size=size)))

    def _probe(self, offset: int) -> None:
        self._fetch(offset, 1)


class MscBackend:
    """Objects in a bucket."""

    def open(self, url: str, size: int | None = None) -> MscReader:
        return MscReader(url, size)

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None and self.size(url) > max_bytes:
            return MscReader(url, max_bytes + 1).read_at(0, max_bytes + 1)
        return _ask(lambda client, path: bytes(client.read(path)), "read", url)

    def write_bytes(self, url: str, content: bytes) -> None:
        _ask(lambda client, path: client.write(path, content), "write", url)

    def write_file(self, url: str, local: str) -> None:
        _ask(lambda client, path: client.upload_file(path, local), "upload", url)

    def size(self, url: str) -> int:
        return self.identity(url)[0]

    def identity(self, url: str) -> tuple[int, str]:
        found = _ask(lambda client, path: client.info(path), "look at", url)
        return int(found.content_length), str(found.etag or found.last_modified)

    def is_dir(self, url: str) -> bool:
        return _ask(lambda client, path: any(True for _ in client.list(path=path.rstrip("/") + "/")), "list", url)

    def list_files(self, url: str) -> list[str]:
        def names(client: Any, path: str) -> list[str]:
            prefix = path.rstrip("/") + "/" if path else ""
            keys = [item.key for item in client.list(path=prefix)]
            return sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix))

        return _ask(names, "list", url)

    def remove(self, url: str) -> None:
        def delete(client: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                client.delete(path)

        _ask(delete, "remove", url)


def resolve(url: str) -> tuple[Any, str]:
    """Returns the client of a URL (cached per process, recreated after a fork) and the path inside it.

    Raises:
        StorageError: No client can be created for it.
    """
    try:
        from multistorageclient.shortcuts import resolve_storage_client
    except ImportError as error:
        raise StorageError(
            f"{url} needs multi-storage-client, which cannot be imported: {error}. Run "
            "`pip install 'energon-dali[msc]'`, or use the URL of the bucket: s3://, gs:// or az://."
        ) from error
    mark_in_use()
    try:
        client, path = resolve_storage_client(url)
    except Exception as error:
        raise StorageError(
            f"Could not reach {url}: {type(error).__name__}: {error}. Check the URL, and the configuration of "
            "multi-storage-client."
        ) from error
    return client, path


def is_mapped(url: str) -> bool:
    """Returns whether the configuration of multi-storage-client maps the URL of an object to one of its profiles."""
    found = _mapping(os.environ.get("MSC_CONFIG"), os.environ.get("HOME"))
    if found is None:
        return False
    profiles, paths = found
    scheme, _, rest = url.partition("://")
    # The client looks for settings of a bucket under this name.
    return f"_{scheme}-{rest.partition('/')[0]}" in profiles or paths.find_mapping(url) is not None


@lru_cache(maxsize=8)
def _mapping(variable: str | None, home: str | None) -> tuple[frozenset[str], Any] | None:
    """Returns the profiles and the mapped paths of the configuration, None if there is none.

    Without one, the client is not imported, which would take half a second.
    """
    users = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    systems = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    stems = [f"{home}/.msc_config", f"{home}/.config/msc/config", "/etc/msc_config"]
    stems += [f"{folder}/msc/config" for folder in (users, *systems)]
    files = [f"{stem}.{suffix}" for stem in stems for suffix in ("yaml", "json")]
    if not any(map(os.path.exists, files if variable is None else [variable, *files])):
        return None
    try:
        from multistorageclient import StorageClientConfig
    except ImportError:
        return None
    try:
        configuration, _ = StorageClientConfig.read_msc_config()
    except ValueError as error:
        raise StorageError(f"The configuration of multi-storage-client cannot be read: {error}.") from error
    return frozenset((configuration or {}).get("profiles") or ()), StorageClientConfig.read_path_mapping()


def _ask(call: Callable[[Any, str], T], doing: str, url: str) -> T:
    """Calls `call(client, path)` with retries, and returns its result.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: Every attempt failed, or no client can be created.
    """
    client, path = resolve(url)

    def attempt() -> T:
        with _translated(doing, url):
            return call(client, path)

    return with_retries(attempt, doing, url)


@contextmanager
def _translated(doing: str, url: str) -> Iterator[None]:
    """Context manager that turns errors of the client into those that `with_retries` handles."""
    from multistorageclient.types import RetryableError

    try:
        yield
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
