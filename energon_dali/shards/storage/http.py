"""Files on web servers, read only, by range requests: what multi-storage-client does not offer."""

from __future__ import annotations

import urllib.error
import urllib.request

from energon_dali.errors import StorageError
from energon_dali.shards.storage.retry import with_retries

TIMEOUT_SECONDS = 30.0


class HttpReader:
    """A file on a web server, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.size = HttpBackend().size(url)

    def read_at(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        headers = {"Range": f"bytes={offset}-{offset + size - 1}"}
        status, data = with_retries(
            lambda: _fetch(self.url, headers), f"read bytes {offset} to {offset + size} of {self.url}"
        )
        if status == 206:
            return data
        return data[offset : offset + size]  # a server without ranges sends the whole file

    def close(self) -> None:
        """Does nothing: every request is a connection of its own."""


class HttpBackend:
    """Files on web servers."""

    def open(self, url: str) -> HttpReader:
        return HttpReader(url)

    def read_bytes(self, url: str) -> bytes:
        return with_retries(lambda: _fetch(url, {}), f"read {url}")[1]

    def size(self, url: str) -> int:
        def ask() -> int:
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_SECONDS
                ) as answer:
                    return int(answer.headers["Content-Length"])
            except urllib.error.HTTPError as error:
                raise _translated(error, url) from error

        return with_retries(ask, f"look at {url}")

    def is_dir(self, url: str) -> bool:
        return True  # a web server does not say; files inside are asked for by name

    def list_files(self, url: str) -> list[str]:
        raise StorageError(
            f"{url} cannot be listed: http has no folders. Prepare the dataset where its files lie, then serve it."
        )

    def write_bytes(self, url: str, content: bytes) -> None:
        raise StorageError(
            f"{url} cannot be written: http is read only. Prepare the dataset where its files lie, then serve it."
        )

    def write_file(self, url: str, local: str) -> None:
        self.write_bytes(url, b"")

    def remove(self, url: str) -> None:
        self.write_bytes(url, b"")


def _fetch(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as answer:
            data = answer.read()
            expected = answer.headers["Content-Length"]
            if expected is not None and int(expected) != len(data):
                raise ConnectionError(f"the answer ended after {len(data)} of {expected} bytes")
            return int(answer.status), data
    except urllib.error.HTTPError as error:
        raise _translated(error, url) from error


def _translated(error: urllib.error.HTTPError, url: str) -> Exception:
    error.close()
    if error.code in (404, 410):
        return FileNotFoundError(f"{url}: {error.code} {error.reason}")
    if error.code in (408, 425, 429) or error.code >= 500:
        return ConnectionError(f"{error.code} {error.reason}")
    return StorageError(
        f"Could not read {url}: the server answered {error.code} {error.reason}. Check the address and the right to "
        "read it."
    )
