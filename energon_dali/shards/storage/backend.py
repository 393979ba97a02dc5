"""What a kind of storage must be able to do."""

from __future__ import annotations

from typing import Protocol


class RangeReader(Protocol):
    """One open file that is read at offsets, from any thread."""

    size: int
    """Size of the file in bytes when it was opened."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            FileNotFoundError: The file is no longer there.
            StorageError: It could not be read, retries included.
        """

    def close(self) -> None:
        """Lets go of the file."""


class Backend(Protocol):
    """One kind of storage; every method takes a whole path or URL.

    Methods that read raise FileNotFoundError where there is no such file; all raise StorageError for anything else.
    """

    def open(self, url: str) -> RangeReader:
        """Returns the file, open to be read."""

    def read_bytes(self, url: str) -> bytes:
        """Returns the content of a file."""

    def write_bytes(self, url: str, content: bytes) -> None:
        """Writes a file; readers see the old content or the new, never a part."""

    def write_file(self, url: str, local: str) -> None:
        """Moves or uploads a local file to its place; readers see the old content or the new, never a part."""

    def size(self, url: str) -> int:
        """Returns the size of a file in bytes."""

    def is_dir(self, url: str) -> bool:
        """Returns whether there is a folder, or anything with that prefix."""

    def list_files(self, url: str) -> list[str]:
        """Returns the paths of all files below a folder, relative to it, sorted."""

    def remove(self, url: str) -> None:
        """Removes a file if it is there."""
