"""Writes the shards of a plan, each a function of the plan and the source, whoever writes it."""

from __future__ import annotations

import json
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from energon_dali.errors import DatasetError, DecodeError, WorkerDiedError
from energon_dali.pack.plan import RECORDS_NAME, PlannedShard
from energon_dali.pack.reading import ReaderSpec, RecordReader
from energon_dali.pack.record import FilePart, RangePart, Record, Skipped, SkipRecord, from_lines
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.index.tar_scan import OCTAL_SIZE_LIMIT, TAR_BLOCK_BYTES
from energon_dali.shards.prepare.parallel import map_on_ray, usable_workers
from energon_dali.shards.prepare.shard_job import CheckPart
from energon_dali.shards.prepare.worker_pool import WorkerPool
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import sync, writing
from energon_dali.shards.storage.owned_folder import OwnedFolder

STATE = ".pack-state"
"""Folder of the plan and of what is unfinished, in the folder of the shards."""
DONE = "done"
UNFINISHED = "unfinished"
PREFIX = "energon-dali-pack-"
BYTES_PER_WORKER = 64 << 20
"""Copying this much takes less time than starting a process."""
_STEP = 32
"""Samples between two reports of progress."""
_MODE = 0o644
_ZEROS = bytes(TAR_BLOCK_BYTES)

OnProgress = Callable[[int, int], None]
"""Takes (samples, bytes) since the last call."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What to write; picklable."""

    out: StoragePath
    shard: PlannedShard
    spec: ReaderSpec
    check_part: CheckPart | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What was written."""

    name: str
    samples: int
    """0 if nothing could be read; then there is no shard."""
    size: int
    """Size of the shard in bytes."""
    skipped: tuple[Skipped, ...] = ()

    def to_json(self) -> bytes:
        """Returns the report as a document."""
        rows = [list(bad) for bad in self.skipped]
        return json.dumps({"samples": self.samples, "size": self.size, "skipped": rows}).encode()

    @classmethod
    def from_json(cls, name: str, content: bytes) -> ShardReport:
        """Returns the report of a document.

        Raises:
            ValueError: It is damaged.
        """
        try:
            value = parse_json(content)
            skipped = tuple(Skipped(str(what), str(reason)) for what, reason in value["skipped"])
            return cls(name, int(value["samples"]), int(value["size"]), skipped)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name}: {error}") from error


class ShardWriter:
    """Writes members one after the other; time, owner and mode are the same for all.

    Args:
        file: Where to write.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.written_bytes = 0

    def add(self, name: str, content: bytes) -> None:
        """Writes a member.

        Args:
            name: Its name, KEY.PART.
            content: Its content.

        Raises:
            OSError: The file cannot be written.
        """
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = _MODE
        # The same bytes where both formats can hold the name and the size, in less time.
        is_plain = name.isascii() and len(name) <= tarfile.LENGTH_NAME and member.size < OCTAL_SIZE_LIMIT
        form = tarfile.USTAR_FORMAT if is_plain else tarfile.PAX_FORMAT
        header = member.tobuf(form, "utf-8", "surrogateescape")  # type: ignore[arg-type]  # typeshed wants a literal
        padding = _ZEROS[: -len(content) % TAR_BLOCK_BYTES]
        self._file.write(header)
        self._file.write(content)
        self._file.write(padding)
        self.written_bytes += len(header) + len(content) + len(padding)

    def finish(self) -> None:
        """Writes the end of the tar.

        Raises:
            OSError: The file cannot be written.
        """
        self._file.write(2 * _ZEROS)
        self.written_bytes += 2 * len(_ZEROS)


def report_path(out: StoragePath, shard: str) -> StoragePath:
    """Returns where the report of a finished shard is."""
    return out / STATE / DONE / f"{shard}.json"


def pack_shards(
    jobs: Sequence[ShardJob], progress: OnProgress, *, num_workers: int | None = None, ray_address: str | None = None
) -> Iterator[ShardReport]:
    """Writes shards, and yields their reports in any order.

    Args:
        jobs: What to write.
        progress: Called with (samples, bytes) since the last call.
        num_workers: Number of processes of this machine; None is one per CPU core, if there is enough to do.
        ray_address: Address of a Ray cluster that writes them instead; see `map_on_ray`. All machines must see the
            source, and the folder of the shards.

    Raises:
        ConfigError: There is no such cluster, or processes do not start.
        DatasetError: The source has changed, or a job is strict and found a sample that cannot be read.
        StorageError: A shard cannot be written.
        WorkerDiedError: A shard ended each process that worked on it.
    """
    if ray_address is not None and jobs:
        for number, report in map_on_ray(ray_address, pack_shard, jobs, lambda: len(jobs), _give_up):
            progress(jobs[number].shard.samples, report.size)
            yield report
        return
    if num_workers is None:
        size = sum(job.shard.estimated_bytes for job in jobs)
        num_workers = usable_workers(size // BYTES_PER_WORKER + 1)
    if min(len(jobs), num_workers) <= 1:
        yield from (pack_shard(job, progress) for job in jobs)
        return
    pool = WorkerPool(pack_shard, jobs, min(len(jobs), num_workers), 1, _give_up, progress)
    yield from (report for _, report in pool.results(lambda: len(jobs)))


def _give_up(job: ShardJob, end: str) -> NoReturn:
    """Raises the error for a shard that keeps ending its process.

    Raises:
        WorkerDiedError: Always.
    """
    raise WorkerDiedError(
        f"The shard {job.shard.name} ended each process that wrote it ({end}). If memory ran out, give the machine "
        "more or use fewer --workers. Then run again: finished shards are kept."
    )


def pack_shard(job: ShardJob, progress: OnProgress | None = None) -> ShardReport:
    """Writes a shard: aside at first, then synced, and renamed or uploaded when it is complete.

    Its report is written before it appears, so a shard that is there always has one.

    Args:
        job: What to write.
        progress: Called now and then.

    Raises:
        DatasetError: The source has changed, or a sample cannot be read and `job.strict`.
        StorageError: The shard cannot be written.
    """
    records = _read_records(job)
    if job.out.is_local:
        folder = job.out.local / STATE / UNFINISHED
        unfinished = folder / f"{job.shard.name}.{uuid.uuid4().hex}.tmp"
        try:
            return _pack(job, records, unfinished, progress)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    owned = OwnedFolder(Path(tempfile.gettempdir()), PREFIX)
    try:
        return _pack(job, records, owned.path / job.shard.name, progress)
    finally:
        owned.remove()


def _read_records(job: ShardJob) -> bytes:
    path = job.out / STATE / RECORDS_NAME
    reader = path.open()
    try:
        records = reader.read_at(job.shard.offset, job.shard.size)
    finally:
        reader.close()
    if len(records) != job.shard.size:
        raise DatasetError(f"{path} is damaged. Run again with --overwrite.")
    return records


def _pack(job: ShardJob, records: bytes, unfinished: Path, progress: OnProgress | None) -> ShardReport:
    reader = RecordReader(job.spec)
    skipped: list[Skipped] = []
    samples = 0
    with writing(unfinished), unfinished.open("wb", buffering=1 << 20) as file:
        writer = ShardWriter(file)
        reported = (0, 0)
        for number, record in enumerate(from_lines(records), 1):
            try:
                parts = _read_parts(job, reader, record)
            except SkipRecord as error:
                if job.strict:
                    raise DatasetError(f"{describe(record)}: {error}. Without --strict it would be left out.") from None
                skipped.append(Skipped(describe(record), str(error)))
            else:
                samples += 1
                for name, content in parts:
                    writer.add(f"{record.key}.{name}", content)
            if progress is not None and (number % _STEP == 0 or number == job.shard.samples):
                progress(number - reported[0], writer.written_bytes - reported[1])
                reported = number, writer.written_bytes
        writer.finish()
    report = ShardReport(job.shard.name, samples, writer.written_bytes if samples else 0, tuple(skipped))
    with writing(unfinished):
        sync(unfinished)
    report_path(job.out, job.shard.name).write_bytes(report.to_json())
    if samples:
        (job.out / job.shard.name).write_file(unfinished)
    return report


def describe(record: Record) -> str:
    """Returns what a record is in its source, for messages."""
    paths = [part.path for part in record.parts if isinstance(part, FilePart | RangePart)]
    if record.row is not None:
        return f"{record.row.path}, block {record.row.block}, row {record.row.row}"
    return f"{paths[0]} ({record.key})" if paths else record.key


def _read_parts(job: ShardJob, reader: RecordReader, record: Record) -> list[tuple[str, bytes]]:
    parts = reader.read(record)
    if job.check_part is not None:
        for name, content in parts:
            try:
                job.check_part(name, lambda content=content: content)  # type: ignore[misc]
            except DecodeError as error:
                raise SkipRecord(f"its part {name!r} cannot be read: {error}") from None
    return parts
