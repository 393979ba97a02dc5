"""Files on local disks and mounted file systems."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.storage.retry import with_retries


class LocalReader:
    """A local file, read with pread, so that threads need no lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.fd).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.fd, size, offset)
        if len(data) == size:
            return data
        return self._read_on(data, offset, size)

    def _read_on(self, data: bytes, offset: int, size: int) -> bytes:
        """Returns the rest too: one pread gives at most 2 GiB, and network file systems may give less."""
        pieces, got = [data], len(data)
        while data and got < size:
            data = os.pread(self.fd, size - got, offset + got)
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LocalBackend:
    """Local files."""

    def open(self, url: str) -> LocalReader:
        return with_retries(lambda: LocalReader(url), f"open {url}")

    def read_bytes(self, url: str) -> bytes:
        return with_retries(Path(url).read_bytes, f"read {url}")

    def write_bytes(self, url: str, content: bytes) -> None:
        self._replace(url, lambda temporary: Path(temporary).write_bytes(content))

    def write_file(self, url: str, local: str) -> None:
        self._replace(url, lambda temporary: shutil.move(local, temporary))

    @staticmethod
    def _replace(url: str, write: Callable[[str], object]) -> None:
        temporary = f"{url}.{os.getpid()}.tmp"
        try:
            Path(url).parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            os.replace(temporary, url)
        except OSError as error:
            raise StorageError(
                f"Could not write {url}: {error}. Check that the folder may be written to and that the disk is not "
                "full."
            ) from error
        finally:
            Path(temporary).unlink(missing_ok=True)

    def size(self, url: str) -> int:
        return with_retries(lambda: os.stat(url).st_size, f"look at {url}")

    def is_dir(self, url: str) -> bool:
        return os.path.isdir(url)

    def list_files(self, url: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(url, followlinks=True):
            relative = os.path.relpath(folder, url)
            found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(found)

    def remove(self, url: str) -> None:
        Path(url).unlink(missing_ok=True)
