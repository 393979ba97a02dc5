"""Where the bytes of a media file come from, and how they travel between processes."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, cast

from energon_dali.errors import ConfigError

MediaSource = bytes | bytearray | memoryview | BinaryIO | str | os.PathLike[str]
"""What a media file can be given as: its bytes, a seekable binary stream, or a path."""


def tag_options() -> dict[str, Any]:
    """Returns options of `av.open` with which tags that are not UTF-8 fail no file, for this PyAV: 19 needs none."""
    import av

    return {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}


class MemoryReader:
    """A seekable reader over bytes that somebody else holds; nothing is copied but what is read.

    Args:
        view: One-dimensional bytes.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes from the position on, all that are left if it is negative."""
        start = self._position
        stop = len(self._view) if size < 0 else min(start + size, len(self._view))
        self._position = max(start, stop)
        return self._view[start:stop].tobytes()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position and returns it; it never lies before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position


def check_source(source: Any) -> MediaSource:
    """Returns the source in the form that is kept: memory as a flat view, a path as a string, a stream as it is.

    Raises:
        ConfigError: It is nothing that bytes can be read from, or a stream that cannot be read at any place.
    """
    if type(source) is io.BytesIO:
        source = source.getvalue()  # Shares the bytes where the stream was made from bytes.
    if isinstance(source, (bytes, bytearray, memoryview, pickle.PickleBuffer)):
        view = memoryview(source)
        if not view.contiguous:
            raise ConfigError(
                "The media file was given as a memoryview with gaps. Its bytes must lie side by side. "
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
            "A media file was given as a stream without seek. Its index and its frames lie at different places. "
            "Read it into bytes first: `stream.read()`."
        )
    return cast(BinaryIO, source)


def pickle_source(source: MediaSource, protocol: int) -> Any:
    """Returns the source as something that pickle takes; memory goes out of band where the protocol can (5)."""
    if isinstance(source, memoryview):
        return pickle.PickleBuffer(source) if protocol >= 5 else source.tobytes()
    return source


@contextmanager
def view_bytes(source: MediaSource) -> Iterator[memoryview | None]:
    """Gives the bytes of a source without copying: memory, or a file that is mapped; None behind a stream or a URL.

    The view ends with the `with` block.
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


def open_source(source: MediaSource) -> Any:
    """Returns what FFmpeg is given: a path, or an object with read, seek and tell, at its start.

    Raises:
        ConfigError: It is a stream that was closed.
    """
    if isinstance(source, memoryview):
        return MemoryReader(source)
    if isinstance(source, str):
        return source
    if getattr(source, "closed", False):
        raise ConfigError(
            "The media file was given as a stream, and that is closed. Keep it open as long as it is used, "
            "or give its path or its bytes."
        )
    source.seek(0)  # type: ignore[union-attr]
    return source
