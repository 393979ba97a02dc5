"""A media file that is opened once, when it is first needed, and closed with its owner."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from energon_dali.av.limits import AVLimits
from energon_dali.av.mp4_screen import screen_mp4
from energon_dali.av.source import FileReader, MediaSource, check_source, open_source, pickle_source, view_bytes
from energon_dali.av.stream_facts import StreamFacts, find_facts
from energon_dali.demuxers import open_container
from energon_dali.errors import ConfigError, DecodeError, DeviceError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream

ROUTE = "pyav"
READ_BYTES = 1 << 17
"""What FFmpeg asks for at once: a read from Python costs the interpreter lock, so a few large ones."""
MAX_THREADS = 8
"""More decoding threads than this cost memory and delay, and no clip is faster."""
LEAST_PYAV = (17, 1)
"""The oldest that the tests have run with; 17.0 and older cannot open a clip."""

_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def load_pyav() -> ModuleType:
    """Returns the module av.

    Raises:
        DeviceError: PyAV is not installed or too old.
    """
    try:
        import av
    except ImportError as error:
        found = f"it cannot be imported ({error})"
    else:
        if tuple(map(int, re.findall(r"\d+", av.__version__)[:2])) >= LEAST_PYAV:
            return av
        found = f"this is PyAV {av.__version__}"
    raise DeviceError(
        f"Videos and sounds need PyAV 17.1 or 18, and {found}. Install it with pip install 'av>=17.1,<19'."
    )


def count_threads(threads: int | None) -> int:
    """Returns how many threads FFmpeg decodes with.

    Args:
        threads: As asked for. None: one in worker and forked processes, whose siblings keep the other cores busy; else
            as many as OMP_NUM_THREADS says (the loader's workers have 1 there), or one per core, up to `MAX_THREADS`.
    """
    if threads is not None:
        return threads
    if _forked or multiprocessing.parent_process() is not None:
        return 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    allowed = int(said) if said.isdecimal() else len(os.sched_getaffinity(0))
    return max(1, min(allowed, MAX_THREADS))


class MediaFile:
    """One video or audio file: opens its container on first use, once, and keeps it until closed.

    It may be used from several threads, one at a time (`opened` holds a lock), and is picklable: what travels is the
    source, memory out of band, and not the container. A forked child opens the file anew.

    Args:
        source: The bytes of the file (kept as a view), a seekable binary stream, or a path.
        limits: How much it may cost.
        threads: Threads that FFmpeg decodes with; None chooses (`count_threads`). The pictures do not depend on it.

    Raises:
        ConfigError: The source is none of these, or `threads` is not positive.
    """

    def __init__(self, source: MediaSource, *, limits: AVLimits | None = None, threads: int | None = None) -> None:
        if limits is not None and not isinstance(limits, AVLimits):
            raise ConfigError(f"limits={limits!r} was given. Limits are an AVLimits(...), or None for the usual ones.")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ConfigError(f"threads={threads!r} was given. At least one decodes. Give 1 or more, or None.")
        self._container: InputContainer | None = None
        self._reader: Any = None
        """What the open container reads from."""
        self._is_at_start = False
        """Whether nobody chose a stream to read since the container was opened."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self.source = check_source(source)
        self.limits = limits or AVLimits()
        self.threads = threads
        self.cache: dict[Any, Any] = {}
        """What readers learnt about this file, such as its frame index."""

    @contextmanager
    def opened(self) -> Iterator[InputContainer]:
        """Gives the open container, for one user at a time; errors of FFmpeg become DecodeError.

        Its position and the state of its decoders are unknown: a user seeks first.

        Raises:
            DecodeError: The file cannot be opened, or FFmpeg failed while it was used.
        """
        if self._pid != os.getpid():
            self._abandon()
        with self._lock, translated_errors(self.format):
            if self._container is None:
                self._container = self._open()
            yield self._container

    @property
    def container(self) -> InputContainer:
        """The open container; only inside `opened`."""
        assert self._container is not None
        return self._container

    @property
    def format(self) -> str:
        """FFmpeg's name of the container's format, "" before it is open."""
        return self._container.format.name if self._container is not None else ""

    @property
    def streams(self) -> tuple[StreamFacts, ...]:
        """Facts about every stream, in the order of the file; opens it.

        Raises:
            DecodeError: The file cannot be opened.
        """
        facts: tuple[StreamFacts, ...] | None = self.cache.get("streams")
        if facts is None:
            with self.opened() as container:
                facts = self.cache["streams"] = tuple(find_facts(stream) for stream in container.streams)
        return facts

    def find_stream(self, kind: str) -> StreamFacts | None:
        """Returns the facts about the first stream of a kind ("video", "audio"), None if there is none.

        Cover pictures do not count as video.

        Raises:
            DecodeError: The file cannot be opened.
        """
        return next((facts for facts in self.streams if facts.kind == kind and not facts.is_cover), None)

    def select(self, stream: Stream) -> None:
        """Lets the container skip the packets of all streams but one, and sets up its decoder's threads and limits."""
        import av

        assert self._container is not None
        self._is_at_start = False
        for other in self._container.streams:
            other.discard = av.stream.Discard.default if other.index == stream.index else av.stream.Discard.all
        context = stream.codec_context
        if context is not None and not context.is_open:
            threads = 1 if self.streams[stream.index].is_interlaced_mpeg4 else count_threads(self.threads)
            context.thread_type = "AUTO" if threads > 1 else "NONE"
            context.thread_count = threads
            context.copy_opaque = True
            if stream.type == "video":
                context.options = {"max_pixels": str(self.limits.max_pixels)}

    def deadline(self) -> Deadline:
        """Returns the clock of one call."""
        return Deadline(self.limits.max_seconds, self.format)

    @property
    def is_at_start(self) -> bool:
        """Whether nothing was read since the container was opened; only inside `opened`."""
        return self._is_at_start

    def rewind(self) -> InputContainer:
        """Returns the container at its first packet, opened anew if it was read; only inside `opened`.

        Raises:
            DecodeError: The file cannot be opened any more.
        """
        return self.container if self._is_at_start else self.reopen()

    def reopen(self) -> InputContainer:
        """Returns the container opened anew, at its first packet; only inside `opened`.

        Raises:
            DecodeError: The file cannot be opened any more.
        """
        with self._lock, translated_errors(self.format):
            self._shut()
            self._container = self._open()
            return self._container

    def close(self) -> None:
        """Closes the container; it opens again when it is used again."""
        if self._pid != os.getpid():
            self._abandon()
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()
        if isinstance(self._reader, FileReader):
            self._reader.close()
        self._reader = None

    def _open(self) -> InputContainer:
        with view_bytes(self.source) as data:
            if data is not None:
                screen_mp4(data)
        timeout = self.limits.max_seconds
        self._is_at_start = True
        self._reader = open_source(self.source)
        return open_container(self._reader, buffer_size=READ_BYTES, timeout=timeout)

    def _abandon(self) -> None:
        """Forgets a container of the parent process without freeing it: its decoding threads are not in this one."""
        if self._container is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._container))
        self._container = self._reader = None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __enter__(self) -> MediaFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _restore, (type(self), pickle_source(self.source, int(protocol)), self.limits, self.threads)

    def __repr__(self) -> str:
        size = f"{len(self.source)} bytes" if isinstance(self.source, memoryview) else repr(self.source)
        return f"MediaFile({size}{', open' if self._container is not None else ''})"


def _restore(kind: type[MediaFile], source: Any, limits: AVLimits, threads: int | None) -> MediaFile:
    return kind(source, limits=limits, threads=threads)


def demux_stream(container: Any, stream: Any, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from where the container stands, and mostly an empty one behind the last.

    Args:
        container: PyAV's open container.
        stream: One of its streams.
        tolerant: Takes a place that cannot be read for the end; else its error comes out.

    Raises:
        FFmpegError: The container cannot be read on.
    """
    from av.error import FFmpegError

    try:
        yield from container.demux(stream)
    except IndexError:
        # PyAV 18.1 fails so behind the last packet, by chance, where FFmpeg met more streams on the way (FLV, MPEG-TS).
        return
    except (FFmpegError, EOFError):
        if not tolerant:
            raise


class Deadline:
    """The time that one call may take.

    Args:
        seconds: How long, from now on; None for ever.
        format: Of the file, for the message.
    """

    def __init__(self, seconds: float | None, format: str = "") -> None:
        self._seconds = seconds
        self._format = format
        self._end = None if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Does nothing before the end.

        Raises:
            DecodeError: The time is over.
        """
        if self._end is not None and time.monotonic() > self._end:
            raise DecodeError(
                f"Decoding took longer than AVLimits(max_seconds={self._seconds}). The file is larger than it should "
                "be, or damaged. Ask for fewer frames, or allow more time",
                self._format,
                ROUTE,
            )


@contextmanager
def translated_errors(format: str = "") -> Iterator[None]:
    """Turns what FFmpeg and PyAV raise inside into DecodeError.

    Args:
        format: Of the file, for the message.

    Raises:
        DecodeError: In place of an error of FFmpeg or PyAV.
        DeviceError: There is no PyAV, or an older one.
    """
    pyav = load_pyav()
    try:
        yield
    except pyav.error.FFmpegError as error:
        file = "it" if error.filename in (None, "", "<none>") else error.filename  # "<none>" where bytes are read
        raise DecodeError(f"FFmpeg cannot read {file}: {error.strerror or error}", format, ROUTE) from error
    except (EOFError, UnicodeError, OverflowError) as error:
        raise DecodeError(f"FFmpeg cannot read it: {error}", format, ROUTE) from error
