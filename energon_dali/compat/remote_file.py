"""Remote files with the interface of open local ones."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, Any

from energon_dali.shards import StoragePath
from energon_dali.shards.storage import WindowReader


def opened(path: StoragePath, block_size: int | None, whole: bool) -> IO[bytes]:
    """Returns a remote file, open for reading.

    Args:
        path: The file.
        block_size: Bytes per request; None chooses.
        whole: Read it with one request.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: It cannot be read.
    """
    if whole:
        return io.BytesIO(path.read_bytes())
    return io.BufferedReader(_RemoteFile(path, block_size))


class _RemoteFile(io.RawIOBase):
    """A remote file, read in large requests."""

    def __init__(self, path: StoragePath, block_size: int | None) -> None:
        self._reader = path.open()
        self._window = WindowReader(self._reader, *([block_size] if block_size else []))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {0: 0, 1: self._position, 2: self._reader.size}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._window.read_at(self._position, min(len(buffer), max(0, self._reader.size - self._position)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class Upload(io.BufferedWriter):
    """A temporary local file that becomes a remote file when it is closed.

    Args:
        path: The remote file.
    """

    def __init__(self, path: StoragePath) -> None:
        descriptor, self._local = tempfile.mkstemp(prefix="energon-dali-upload-")
        self._path = path
        self.failed = False
        """Whether it was not written to its end; then it is not uploaded."""
        super().__init__(io.FileIO(descriptor, "w"))

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self.failed = kind is not None
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            if not self.failed:
                self._path.write_file(self._local)
        finally:
            if os.path.exists(self._local):
                os.unlink(self._local)


class TextUpload(io.TextIOWrapper):
    """An `Upload` of text."""

    buffer: Upload

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self.buffer.failed = kind is not None
        self.close()
