"""What readers of remote files have in common: ranges within the file, retries, and a probe of the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

from energon_dali.shards.storage.retry import with_retries
from energon_dali.shards.storage.store import PROBE_BYTES, store_of


class RemoteReader(ABC):
    """A remote file, read by ranges. Its connections belong to the process.

    Args:
        url: Its URL.
        size: Its size in bytes.
    """

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self.size = size
        self._store = store_of(url)

    def read_at(self, offset: int, size: int) -> bytes:
        data = self.read_view(offset, size)
        return data if isinstance(data, bytes) else bytes(data)

    def read_view(self, offset: int, size: int) -> bytes | memoryview:
        size = min(size, self.size - offset)  # a server refuses a range that begins at the end
        if size <= 0:
            return b""
        data = self._fetch_patiently(offset, size)
        self._store.succeeded(self.url, self._probe, offset)
        return data

    def _fetch_patiently(self, offset: int, size: int, failed: OSError | None = None) -> bytes | memoryview:
        doing = f"read bytes {offset} to {offset + size} of"
        return with_retries(partial(self._fetch, offset, size), doing, self.url, failed=failed)

    @abstractmethod
    def _fetch(self, offset: int, size: int) -> bytes | memoryview:
        """Makes one attempt."""

    def _probe(self, offset: int) -> None:
        """Reads a little; raises if that fails."""
        self._fetch(offset, min(PROBE_BYTES, self.size - offset))

    def close(self) -> None:  # noqa: B027 - not abstract: no reader has anything to close
        """Does nothing: the connections belong to the process."""
