"""Indexes one shard: scans the tar, parses the headers of media, and packs the result into a few byte strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol

from energon_dali.errors import DatasetError, DecodeError, ShardError, StorageError
from energon_dali.shards.index.extents import PartFacts, ShardExtents
from energon_dali.shards.index.sqlite_index import MediaRow, PartRow, SampleRow
from energon_dali.shards.index.tar_index import missing_shard, scan_extents
from energon_dali.shards.index.tar_scan import PartMember, ReadAt
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import map_in_threads

CheckPart = Callable[[str, Callable[[], bytes]], PartFacts | None]
"""Takes (part name, function that returns the content); returns what its header says, None for parts that it does not
check. Raises DecodeError; picklable."""


class DescribeMedia(Protocol):
    """Finds and describes media for the table `media_metadata`; picklable. See `decode.media_filter.MediaFilter`."""

    @property
    def strategy(self) -> str:
        """How media are found, for the table `media_filters`."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of names, likewise."""

    def __call__(self, name: str, content: Callable[[], bytes]) -> tuple[str, str] | None:
        """Takes (`KEY.PART`, function that returns the content); returns ("image" or "av", JSON) or None."""


class IndexMedia(Protocol):
    """Makes the entries of `media_index.bin`; picklable. See `av.media_indexing.MediaIndexer`."""

    @property
    def version(self) -> str:
        """Changes if other entries would be made of the same media."""

    def __call__(self, content: bytes) -> bytes:
        """Takes the content of a video or audio file; returns its entry, or `entry_without_index`."""


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """A media part whose header cannot be parsed."""

    shard: str
    key: str
    part: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What to do with each shard; picklable."""

    root: StoragePath
    check_part: CheckPart | None = None
    describe_media: DescribeMedia | None = None
    index_media: IndexMedia | None = None
    """Indexes the videos and sounds that `describe_media` selects."""
    windows_ahead: int = field(default=0, compare=False)
    """Windows of a remote shard that are requested before they are needed."""


@dataclass(slots=True)
class ShardScan:
    """What was found in a shard, in about 60 bytes per part."""

    shard: str
    section: bytes = b""
    starts: list[int] = field(default_factory=list)
    part_names: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    num_samples: int = 0
    num_parts: int = 0
    shard_bytes: int = 0
    unreadable: list[UnreadablePart] = field(default_factory=list)
    media: list[MediaRow] = field(default_factory=list)
    media_index: list[tuple[int, bytes]] = field(default_factory=list)
    """(offset of the content, entry of `media_index.bin`) of each video and audio part."""
    error: str = ""
    """Why the shard cannot be used; "" if it can."""
    version: str = ""
    """Size, and ETag or time of the last change, when it was scanned."""
    is_known: bool = False
    """Whether the shard still has the version that it was asked for; then it was not scanned."""

    @property
    def extents(self) -> ShardExtents:
        """The extents."""
        return ShardExtents(
            self.section, self.num_samples, self.num_parts, self.shard_bytes, self.part_names, self.formats
        )

    def sample_rows(self, tar: int) -> list[SampleRow]:
        """Returns the rows of the table of samples."""
        extents, starts = self.extents, self.starts
        return [(tar, extents.key(i), i, starts[i], starts[i + 1] - starts[i]) for i in range(self.num_samples)]

    def part_rows(self, tar: int) -> Iterator[PartRow]:
        """Yields the rows of the table of parts."""
        extents = self.extents
        for sample in range(self.num_samples):
            for name, offset, size in extents.parts(sample):
                yield tar, sample, name, offset, size


def index_shard(job: ShardJob, shard: str, known_version: str | None = None) -> ShardScan:
    """Returns what a shard holds; a shard that cannot be used has an `error`.

    Args:
        job: What to do with it.
        shard: Its path in the dataset.
        known_version: The version that is already known; if the shard has it, it is not scanned.
    """
    try:
        return _index_shard(job, shard, known_version)
    except (DatasetError, StorageError) as error:
        return ShardScan(shard, error=str(error))


def _index_shard(job: ShardJob, shard: str, known_version: str | None) -> ShardScan:
    try:
        size, version = _version_of(job.root / shard)
        if version == known_version:
            return ShardScan(shard, shard_bytes=size or 0, version=version, is_known=True)
        reader = (job.root / shard).open(size)
    except FileNotFoundError as error:
        raise missing_shard(job.root, shard) from error
    scan = ShardScan(shard, shard_bytes=reader.size, version=version)
    streamed = None if job.root.is_local else StreamedReader(reader, job.windows_ahead)
    try:
        read_at = reader.read_at if streamed is None else streamed.read_at
        builder, scan.starts = scan_extents(read_at, reader.size, shard, _Inspection(job, scan, read_at))
    finally:
        if streamed is not None:
            streamed.close()
        reader.close()
    scan.section = builder.section()
    scan.part_names, scan.formats = list(builder.names), list(builder.formats)
    scan.num_samples, scan.num_parts = builder.num_samples, len(builder.columns["part_size"])
    if scan.num_samples == 0:
        scan.error = (
            f"{job.root / shard} holds no sample: no file named KEY.PART. Remove it, or exclude it with --exclude."
        )
    return scan


def _version_of(path: StoragePath) -> tuple[int | None, str]:
    """Returns (size, version) of a file.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: The store does not answer.
    """
    try:
        size, tag = path.identity()
    except StorageError:
        if path.is_local:  # opening it says what is wrong
            return None, ""
        raise
    return size, f"{size} {tag}" if tag else ""


@dataclass(slots=True)
class _Inspection:
    """Looks at the parts of a shard in their order, and adds what it finds to the scan."""

    job: ShardJob
    scan: ShardScan
    read_at: ReadAt
    seen: set[str] = field(default_factory=set)
    """Names of the parts of the sample."""

    def __call__(self, part: PartMember) -> PartFacts | None:
        job, scan, member = self.job, self.scan, part.member
        if part.new_sample:
            self.seen.clear()
        if part.part in self.seen:
            raise ShardError(
                f"{job.root / scan.shard} holds the part {part.part!r} of the sample {part.key!r} twice. A sample has "
                "one part of each name: write the shard again, with another name for one of the two.",
                scan.shard,
            )
        self.seen.add(part.part)
        if job.check_part is None and job.describe_media is None:
            return None
        facts = None
        content = cache(partial(self.read_at, member.content_offset, member.size))  # read once, on first use
        if job.check_part is not None:
            try:
                facts = job.check_part(part.part, content)
            except DecodeError as error:
                scan.unreadable.append(UnreadablePart(scan.shard, part.key, part.part, str(error)))
                return None  # a part that cannot be parsed is not described
        if job.describe_media is not None:
            name = f"{part.key}.{part.part}"
            described = job.describe_media(name, content)
            if described is not None:
                scan.media.append((name, *described))
                if job.index_media is not None and described[0] == "av":
                    scan.media_index.append((member.content_offset, job.index_media(content())))
        return facts


WHOLE_BYTES = 4 << 20
"""Smaller files are read in one request."""
FIRST_BYTES = 1 << 20
"""First window of a larger file."""
AFTER_JUMP_BYTES = 32 << 10
"""First window after a member that is passed over: its neighbour's headers, and small members."""
LARGEST_BYTES = 8 << 20
"""Largest window."""
JUMP_BYTES = 1 << 20
"""A gap of this size is passed over: fetching it would take as long as a new request."""


class StreamedReader:
    """Reads a remote file from the front, in few requests: whole where it is needed, in small pieces where it is not.

    A tar is scanned from header to header. Where members are small, or their content is looked at, everything is
    needed: it is requested in windows that grow, several of them at a time if that is asked for. Where a large member
    is passed over, only the next headers are requested, and the windows start small again. Not thread-safe.

    Args:
        reader: The file.
        ahead: Windows that are requested before they are needed.
    """

    def __init__(self, reader: RangeReader, ahead: int = 0) -> None:
        self._reader = reader
        self._ahead = ahead
        self._start = 0
        self._chunk = b""
        self._window = reader.size if reader.size <= WHOLE_BYTES else FIRST_BYTES
        self._stream: Iterator[bytes] | None = None
        """The next windows, of which some are requested."""
        self._taken = 0

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            StorageError: It could not be read, retries included.
        """
        end = self._start + len(self._chunk)
        if self._start <= offset and offset + size <= end:
            return self._chunk[offset - self._start : offset - self._start + size]
        if offset > end + JUMP_BYTES or offset < self._start:
            self.close()
            self._window = AFTER_JUMP_BYTES
            self._start, self._chunk = offset, self._reader.read_at(offset, max(size, self._window))
        else:
            self._continue(offset, size, end)
        return self._chunk[offset - self._start : offset - self._start + size]

    def close(self) -> None:
        """Drops what was requested ahead; the file itself stays open."""
        self._stream = None  # the last reference to it, so its threads end

    def _continue(self, offset: int, size: int, end: int) -> None:
        """Makes the next windows the chunk, from `offset` on, at least to `offset` + `size`."""
        pieces = [self._chunk[offset - self._start :]] if offset < end else []
        position = max(end, offset) if self._stream is None else end
        self._start = min(offset, position)
        while position < min(offset + size, self._reader.size) or not pieces:
            piece = self._next(position, offset + size - position)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            self._window = min(2 * self._window, LARGEST_BYTES)
        self._chunk = b"".join(pieces)

    def _next(self, position: int, wanted: int) -> bytes:
        """Returns the next window. Once windows have their full size, the following ones are requested meanwhile."""
        if self._stream is None and self._ahead and self._window == LARGEST_BYTES:
            starts, self._taken = range(position, self._reader.size, LARGEST_BYTES), 0
            read = partial(self._reader.read_at, size=LARGEST_BYTES)
            self._stream = map_in_threads(read, starts, self._ahead + 1, lambda: self._taken + self._ahead)
        if self._stream is None:
            return self._reader.read_at(position, max(self._window, wanted))
        self._taken += 1
        return next(self._stream, b"")
