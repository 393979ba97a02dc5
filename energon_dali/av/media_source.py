"""The source of the bytes of a media file, and how it travels between processes."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, cast

from energon_dali.av.sparse_media import SparseMedia
from energon_dali.errors import ConfigError, DecodeError

MediaSource = bytes | bytearray | memoryview | BinaryIO | str | os.PathLike[str]
"""What a media file can be given as: its bytes, a seekable binary stream, or a path."""


class MemoryReader:
    """A seekable reader over bytes that it does not own; only what is read is copied.

    Args:
        view: One-dimensional bytes.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes from the position on, or all remaining bytes if `size` is negative."""
        start = self._position
        stop = len(self._view) if size < 0 else min(start + size, len(self._view))
        self._position = max(start, stop)
        return self._view[start:stop].tobytes()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position and returns it; it is never before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position


class FileReader(io.FileIO):
    """A file that Python opens: FFmpeg itself would misread some paths ("concat:a|b", "img%03d.png")."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position and returns it; it is never before the start."""
        try:
            return super().seek(offset, whence)
        except OSError:
            return super().seek(0)


def check_source(source: Any) -> MediaSource | SparseMedia:
    """Returns the source in the form to keep: memory as a flat view, a path as a string, a stream unchanged.

    Raises:
        ConfigError: It is not a source of bytes, or it is a stream without seek.
    """
    if isinstance(source, SparseMedia):
        return source
    if type(source) is io.BytesIO:
        source = source.getvalue()  # shares the bytes if the stream was created from bytes
    if isinstance(source, (bytes, bytearray, memoryview, pickle.PickleBuffer)):
        view = memoryview(source)
        if not view.contiguous:
            raise ConfigError(
                "The media file was given as a memoryview with gaps. Its bytes must be contiguous. "
                "Give `bytes(view)` or a contiguous view."
            )
        return view.cast("B")
    if isinstance(source, str):
        return source
    if isinstance(source, os.PathLike):
        return str(os.fspath(source))
    if isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
        raise ConfigError(
            f"A media file was given as {type(source).__name__}. It may be bytes, a memoryview, a path, or a binary "
            "stream. Open files with mode 'rb'."
        )
    if not hasattr(source, "seek") or not getattr(source, "seekable", lambda: True)():
        raise ConfigError(
            "A media file was given as a stream without seek. Its index and its frames are at different positions. "
            "Read it into bytes first: `stream.read()`."
        )
    return cast(BinaryIO, source)


def pickle_source(source: MediaSource | SparseMedia, protocol: int) -> Any:
    """Returns the source in a picklable form; memory travels out of band from protocol 5 on."""
    if isinstance(source, memoryview):
        return pickle.PickleBuffer(source) if protocol >= 5 else source.tobytes()
    return source


@contextmanager
def view_bytes(source: MediaSource | SparseMedia) -> Iterator[memoryview | None]:
    """Yields the bytes of a source without copying (memory, or a mapped file), or None for a stream or a sparse file.

    The view is valid inside the `with` block.
    """
    if isinstance(source, memoryview):
        yield source
    elif isinstance(source, str) and os.path.isfile(source) and os.path.getsize(source):
        with open(source, "rb") as opened, closing(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()
    else:
        yield None


def open_source(source: MediaSource | SparseMedia) -> Any:
    """Returns the object that FFmpeg reads from, with read, seek and tell, at its start.

    Raises:
        ConfigError: It is a closed stream.
        DecodeError: It is the path of a file that cannot be opened.
    """
    if isinstance(source, SparseMedia):
        return source.open()
    if isinstance(source, memoryview):
        return MemoryReader(source)
    if isinstance(source, str):
        try:
            return FileReader(source)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DecodeError(f"FFmpeg cannot read {source}: {reason}", "", "pyav") from error
    if getattr(source, "closed", False):
        raise ConfigError(
            "The media file was given as a stream that is closed. Keep it open as long as it is used, "
            "or give its path or its bytes."
        )
    source.seek(0)  # type: ignore[union-attr]
    return source
