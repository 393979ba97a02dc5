"""A media file that is opened once, on first use, and closed with its owner."""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.av.media_source import FileReader, MediaSource, check_source, open_source, pickle_source, view_bytes
from energon_dali.av.mp4_screen import screen_mp4
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.stream_facts import StreamFacts, find_facts
from energon_dali.calls import explain_call
from energon_dali.demuxers import open_container
from energon_dali.errors import ConfigError, DecodeError, DeviceError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream

    from energon_dali.av.media_index import MediaIndex, StreamIndex

Found = TypeVar("Found")

ROUTE = "pyav"
READ_BYTES = 1 << 17
"""Bytes that FFmpeg reads at a time. Each read takes the interpreter lock, so a few large reads are better."""
MAX_THREADS = 8
"""More decoding threads than this cost memory and latency, and make no clip faster."""
LEAST_PYAV = (17, 1)
"""The oldest tested version; 17.0 and older cannot open a clip."""


@explain_call
@dataclass(frozen=True, slots=True)
class AVLimits:
    """Upper bounds for one file. Anything beyond them is refused before memory is allocated for it.

    Raises:
        ConfigError: A limit is not positive.
    """

    max_frames: int = 1_000_000
    """Frames that one call may return."""
    max_pixels: int = 128 * 1024 * 1024
    """Width x height of one frame, as stored and as requested."""
    max_bytes: int = 4 << 30
    """Bytes of frames or of audio that one call may return; of audio, also before it is resampled."""
    max_audio_samples: int = 1 << 31
    """Samples per channel that one call may return, and of a recording that is cut into all of its segments."""
    max_packets: int = 50_000_000
    """Packets in the index of a stream."""
    max_seconds: float | None = None
    """Wall-clock seconds that one call may take; None for no limit. Checked between packets."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name == "max_seconds":
                continue
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(
                    f"AVLimits({name}={value!r}) would refuse every file. Limits are positive numbers. "
                    "Give a larger one, or leave it out."
                )


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
    raise DeviceError(f"Video and audio need PyAV 17.1 or 18, and {found}. Install it with pip install 'av>=17.1,<19'.")


def count_threads(threads: int | None) -> int:
    """Returns how many threads FFmpeg decodes with.

    Args:
        threads: The number asked for. None: one in worker and forked processes, whose siblings keep the other cores
            busy; otherwise OMP_NUM_THREADS (which is 1 in the loader's workers), or one per core, up to `MAX_THREADS`.
    """
    if threads is not None:
        return threads
    if _forked or multiprocessing.parent_process() is not None:
        return 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    allowed = int(said) if said.isdecimal() else len(os.sched_getaffinity(0))
    return max(1, min(allowed, MAX_THREADS))


class MediaFile:
    """One video or audio file. Opens its container once, on first use, and keeps it open until closed.

    Several threads may use it, one at a time (`opened` holds a lock). It is picklable: the source travels (memory out
    of band), the open container does not. A forked child opens the file again.

    Args:
        source: The bytes of the file (kept as a view), a seekable binary stream, a path, or a sparse file, which is
            opened only for what its index does not have.
        limits: Limits for decoding it.
        threads: Threads that FFmpeg decodes with; None chooses (`count_threads`). The frames do not depend on it.

    Raises:
        ConfigError: The source is none of these, or `threads` is not positive.
    """

    def __init__(
        self, source: MediaSource | SparseMedia, *, limits: AVLimits | None = None, threads: int | None = None
    ) -> None:
        if limits is not None and not isinstance(limits, AVLimits):
            raise ConfigError(f"limits={limits!r} was given. Limits are an AVLimits(...), or None for the defaults.")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ConfigError(f"threads={threads!r} was given. At least one decodes. Give 1 or more, or None.")
        self._container: InputContainer | None = None
        self._reader: Any = None
        """The object that the open container reads from."""
        self.is_at_start = False
        """Whether nothing was read since the container was opened; only inside `opened`."""
        self._encrypted: frozenset[int] = frozenset()
        """Numbers of the tracks that the header of an MP4 calls encrypted."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self.source = check_source(source)
        self.limits = limits or AVLimits()
        self.threads = threads
        self.cache: dict[Any, Any] = _indexed(self.source.index) if isinstance(self.source, SparseMedia) else {}
        """What readers found out about this file, such as its frame index."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Lets one user at a time decode the file, opened or not. Errors of FFmpeg become DecodeError.

        Raises:
            DecodeError: FFmpeg failed while it was used.
        """
        if self._pid != os.getpid():
            self._abandon()
        with self._lock, translated_errors(self.format):
            yield

    @contextmanager
    def opened(self) -> Iterator[InputContainer]:
        """Yields the open container, to one user at a time, as `used`.

        Its position and the state of its decoders are unknown, so seek first.

        Raises:
            DecodeError: The file cannot be opened, or FFmpeg failed while it was used.
        """
        with self.used():
            yield self.container

    @property
    def container(self) -> InputContainer:
        """The container, which is opened if it is not; only inside `used` or `opened`."""
        if self._container is None:
            self._container = self._open()
        return self._container

    @property
    def format(self) -> str:
        """FFmpeg's name of the container's format; "" before it is open, where no index has it."""
        if isinstance(self.source, SparseMedia):
            return self.source.index.format
        return self._container.format.name if self._container is not None else ""

    def indexed(self, facts: StreamFacts, index: object) -> tuple[SparseMedia, StreamIndex] | None:
        """Returns the source and the index of a stream if its packets can be read without a demuxer; None otherwise.

        Args:
            facts: The stream.
            index: What is to be decoded by: of use only if it is the frames or samples of the stored index.
        """
        if not isinstance(self.source, SparseMedia):
            return None
        stream = self.source.index.stream(facts.position)
        known = stream is not None and index is not None and (stream.frames is index or stream.audio is index)
        return (self.source, stream) if stream is not None and known else None

    @property
    def streams(self) -> tuple[StreamFacts, ...]:
        """Facts about every stream, in the order of the file; opens it.

        Raises:
            DecodeError: The file cannot be opened.
        """
        return self.found("streams", self._find_streams)

    def _find_streams(self) -> tuple[StreamFacts, ...]:
        with self.opened() as container:
            return tuple(find_facts(stream, is_encrypted=stream.id in self._encrypted) for stream in container.streams)

    def found(self, key: Any, find: Callable[[], Found]) -> Found:
        """Returns what `find` returned for a key the first time."""
        if key not in self.cache:
            self.cache[key] = find()
        value: Found = self.cache[key]
        return value

    def find_stream(self, kind: str) -> StreamFacts | None:
        """Returns the facts about the first stream of a kind ("video", "audio"), None if there is none.

        Cover images do not count as video.

        Raises:
            DecodeError: The file cannot be opened.
        """
        return next((facts for facts in self.streams if facts.kind == kind and not facts.is_cover), None)

    def decodable_stream(self, kind: str) -> StreamFacts:
        """Returns the facts about the first stream of a kind, as `find_stream`.

        Raises:
            DecodeError: The file cannot be opened, or has no such stream that can be decoded, or it is encrypted.
        """
        facts = self.find_stream(kind)
        if facts is not None and facts.is_encrypted:
            raise DecodeError(
                f"Its {kind} stream is encrypted, and there is no key to decode it. Store the file without encryption, "
                "or leave it out",
                facts.codec,
                ROUTE,
            )
        if facts is None or not facts.codec:
            kinds = ", ".join(f"{stream.kind} ({stream.codec or 'unknown'})" for stream in self.streams)
            raise DecodeError(f"It has no {kind} stream that can be decoded, only: {kinds or 'nothing'}", "", ROUTE)
        return facts

    def select(self, stream: Stream) -> None:
        """Makes the container skip all other streams, and sets the threads and limits of the decoder."""
        import av

        assert self._container is not None
        self.is_at_start = False
        for other in self._container.streams:
            other.discard = av.stream.Discard.default if other.index == stream.index else av.stream.Discard.all
        context = stream.codec_context
        if context is not None and not context.is_open:
            self.prepare_decoder(context, self.streams[stream.index])

    def decoding_threads(self, facts: StreamFacts) -> int:
        """Returns how many threads a stream is decoded with."""
        return 1 if facts.is_interlaced_mpeg4 else count_threads(self.threads)

    def prepare_decoder(self, context: Any, facts: StreamFacts, threads: int | None = None) -> None:
        """Sets the threads and limits of a codec context that is not open yet.

        Args:
            context: PyAV's codec context.
            facts: The stream that it decodes.
            threads: Threads of the decoder; None for all that the stream may have.
        """
        threads = self.decoding_threads(facts) if threads is None else threads
        context.thread_type = "AUTO" if threads > 1 else "NONE"
        context.thread_count = threads
        context.copy_opaque = True
        if facts.kind == "video":
            context.options = {"max_pixels": str(self.limits.max_pixels)}

    def deadline(self) -> Callable[[], None]:
        """Returns a function that raises DecodeError when the time of a call that starts now is over."""
        seconds = self.limits.max_seconds
        end = None if seconds is None else time.monotonic() + seconds

        def check() -> None:
            if end is not None and time.monotonic() > end:
                raise DecodeError(
                    f"Decoding took longer than AVLimits(max_seconds={seconds}). The file is larger than it should be, "
                    "or damaged. Ask for fewer frames, or allow more time",
                    self.format,
                    ROUTE,
                )

        return check

    def rewind(self) -> InputContainer:
        """Returns the container at its first packet, reopened if something was read; only inside `opened`.

        Raises:
            DecodeError: The file can no longer be opened.
        """
        return self.container if self.is_at_start else self.reopen()

    def reopen(self) -> InputContainer:
        """Returns the reopened container, at its first packet; only inside `opened`.

        Raises:
            DecodeError: The file can no longer be opened.
        """
        with self._lock, translated_errors(self.format):
            self._shut()
            self._container = self._open()
            return self._container

    def close(self) -> None:
        """Closes the container. It reopens on the next use."""
        if self._pid != os.getpid():
            self._abandon()
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()
        self._drop_reader()

    def _drop_reader(self) -> None:
        if isinstance(self._reader, FileReader):
            self._reader.close()
        self._reader = None

    def _open(self) -> InputContainer:
        source, raw = self.source, getattr(self.source, "raw", self.source)
        if isinstance(raw, io.FileIO) and not raw.closed:
            source = f"/dev/fd/{raw.fileno()}"  # an opened file, whose position stays as it is
        with view_bytes(source) as data:
            if data is not None:
                self._encrypted = screen_mp4(data)
        timeout = self.limits.max_seconds
        self.is_at_start = True
        self._reader = open_source(self.source)
        return open_container(self._reader, buffer_size=READ_BYTES, timeout=timeout)

    def _abandon(self) -> None:
        """Drops a container of the parent process without freeing it: its decoding threads do not exist here."""
        if self._container is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._container))
        self._container = None
        self._drop_reader()
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


def _indexed(index: MediaIndex) -> dict[Any, Any]:
    """Returns what readers need not find out about a file, by the keys of `MediaFile.cache`."""
    known: dict[Any, Any] = {"streams": index.streams}
    if index.video is not None and index.video.frames is not None:
        known["video_index", "error"] = index.video.frames
    if index.video is not None and index.video.first_frame is not None:
        first = index.video.first_frame
        known |= {"rotation": first.rotation, "colours": first.colours, "size": (first.width, first.height)}
    if index.audio is not None and index.audio.audio is not None:
        known["audio_index", "error"] = index.audio.audio
    return known


def _restore(kind: type[MediaFile], source: Any, limits: AVLimits, threads: int | None) -> MediaFile:
    return kind(source, limits=limits, threads=threads)


def demux_stream(container: Any, stream: Any, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from the container's position on, usually with an empty packet after the last.

    Args:
        container: PyAV's open container.
        stream: One of its streams.
        tolerant: Whether unreadable data counts as the end of the file instead of raising.

    Raises:
        FFmpegError: The container cannot be read further.
    """
    from av.error import FFmpegError

    try:
        yield from container.demux(stream)
    except IndexError:
        # PyAV 18.1 sometimes raises this after the last packet, if FFmpeg found more streams on the way (FLV, MPEG-TS).
        return
    except (FFmpegError, EOFError):
        if not tolerant:
            raise


@contextmanager
def translated_errors(format: str = "") -> Iterator[None]:
    """Turns exceptions of FFmpeg and PyAV inside the context into DecodeError.

    Args:
        format: Of the file, for the message.

    Raises:
        DecodeError: FFmpeg or PyAV raised an exception.
        DeviceError: PyAV is missing or too old.
    """
    pyav = load_pyav()
    try:
        yield
    except pyav.error.FFmpegError as error:
        file = "it" if error.filename in (None, "", "<none>") else error.filename  # "<none>" if it reads from memory
        raise DecodeError(f"FFmpeg cannot read {file}: {error.strerror or error}", format, ROUTE) from error
    except (EOFError, UnicodeError, OverflowError) as error:
        raise DecodeError(f"FFmpeg cannot read it: {error}", format, ROUTE) from error
