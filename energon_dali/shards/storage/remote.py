"""Object stores, through multi-storage-client: s3://, gs://, ais:// and profiles of its own configuration, msc://."""

from __future__ import annotations

from typing import Any

from energon_dali.shards.storage.retry import with_retries


class RemoteReader:
    """An object, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client, self._path = resolve(url)
        self.size = int(with_retries(lambda: self._client.info(self._path), f"look at {url}").content_length)

    def read_at(self, offset: int, size: int) -> bytes:
        from multistorageclient.types import Range

        size = min(size, self.size - offset)  # a server refuses a range that begins at the end
        if size <= 0:
            return b""
        byte_range = Range(offset=offset, size=size)
        doing = f"read bytes {offset} to {offset + size} of {self.url}"
        return bytes(with_retries(lambda: self._client.read(self._path, byte_range=byte_range), doing))

    def close(self) -> None:
        """Does nothing: connections belong to the client, which is shared."""


class RemoteBackend:
    """Objects in a bucket."""

    def open(self, url: str) -> RemoteReader:
        return RemoteReader(url)

    def read_bytes(self, url: str) -> bytes:
        client, path = resolve(url)
        return bytes(with_retries(lambda: client.read(path), f"read {url}"))

    def write_bytes(self, url: str, content: bytes) -> None:
        client, path = resolve(url)
        with_retries(lambda: client.write(path, content), f"write {url}")

    def write_file(self, url: str, local: str) -> None:
        client, path = resolve(url)
        with_retries(lambda: client.upload_file(path, local), f"upload {url}")

    def size(self, url: str) -> int:
        client, path = resolve(url)
        return int(with_retries(lambda: client.info(path), f"look at {url}").content_length)

    def is_dir(self, url: str) -> bool:
        client, path = resolve(url)
        prefix = path.rstrip("/") + "/"
        return with_retries(lambda: any(True for _ in client.list(path=prefix)), f"list {url}")

    def list_files(self, url: str) -> list[str]:
        client, path = resolve(url)
        prefix = path.rstrip("/") + "/" if path else ""
        found = with_retries(lambda: [item.key for item in client.list(path=prefix)], f"list {url}")
        return sorted(key.removeprefix(prefix) for key in found if key.startswith(prefix))

    def remove(self, url: str) -> None:
        client, path = resolve(url)

        def delete() -> None:
            try:
                client.delete(path)
            except FileNotFoundError:
                return

        with_retries(delete, f"remove {url}")


def resolve(url: str) -> tuple[Any, str]:
    """Returns the client of a URL (cached per process, made anew after a fork) and the path inside it.

    Raises:
        StorageError: No client can be made for it.
    """
    from multistorageclient.shortcuts import resolve_storage_client

    client, path = with_retries(lambda: resolve_storage_client(url), f"reach {url}", attempts=1)
    return client, path
