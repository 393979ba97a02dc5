"""The child's side of a process border: receives its task, serves blocks on request, and reports failures."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import random
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from energon_dali.loader.processes.messages import (
    WHOLE_PROCESS,
    BlockSent,
    Credits,
    StillWorking,
    encode,
    failed_stream,
)
from energon_dali.loader.processes.shared_memory import ArenaStore
from energon_dali.loader.processes.signals import exit_with_parent, setup_signals
from energon_dali.loader.processes.work_board import WorkBoard, WorkReporter
from energon_dali.plan.rng import mix

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.loader.decode_process.device_memory import DevicePiece
    from energon_dali.loader.processes.serialization import SerializedBlock
    from energon_dali.loader.processes.shared_memory import Channel

SMALL_BLOCK_BYTES = 16 * 1024
"""Smaller blocks travel inside the message."""

_REPORT_SECONDS = 1.0
"""How often a process reports dropped samples while it finishes no block."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt."""
_KEPT_BYTES = 1 << 30
"""Freed memory at the end of the heap that stays with the process; more goes back to the system."""
_PAD_BYTES = 64 << 20
_SETTINGS_OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


class ProcessTask(ABC):
    """What a child process runs. It is pickled with `pickle_task`, or inherited by a forked process."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepares this process: seeds, threads, the device."""

    @abstractmethod
    def serve(self, channel: Channel) -> None:
        """Serves until the receiver hangs up.

        Raises:
            EOFError: The receiver hung up.
            ConnectionError: The receiver hung up while a block was being sent.
        """


class ReportingTask(ProcessTask):
    """What a process runs that reports what it works on."""

    board: WorkBoard | None = None
    """Where it reports that, as soon as the process runs."""

    @property
    @abstractmethod
    def process_name(self) -> str:
        """What the process is, such as "worker 3"."""

    @property
    @abstractmethod
    def board_region(self) -> int:
        """Its region of the work board."""


def run_task(channel: Channel, parent_pipe: int, parent_pid: int, task: ProcessTask | None = None) -> None:
    """Main function of a child process. Returns when the parent hangs up.

    Args:
        channel: Connection to the parent. Its first message is the pickled task, unless `task` is given, with the
            descriptor of the work board for a `ReportingTask`.
        parent_pipe: Read end of a pipe whose write end only the parent holds.
        parent_pid: Process id of the parent.
        task: The task of a forked process.
    """
    exit_with_parent(parent_pipe, parent_pid)
    setup_signals()
    keep_freed_memory()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent hung up: that is how a child ends
        task = _receive_task(channel, task)
        if task is not None:
            task.prepare()
            gc.freeze()  # the dataset lives as long as the process: no collection needs to walk it
            task.serve(channel)


def _receive_task(channel: Channel, task: ProcessTask | None) -> ProcessTask | None:
    """Returns the task, with the work board. If it cannot be unpickled here, sends the reason and returns None."""
    if task is not None and not isinstance(task, ReportingTask):
        return task
    first = channel.receive()
    assert first is not None
    data, descriptors = first
    try:
        task = task or pickle.loads(data)
    except BaseException as error:  # also a module that calls sys.exit when it is imported
        channel.send(encode(failed_stream(WHOLE_PROCESS, 0, error, None)))
        return None
    assert task is not None
    if isinstance(task, ReportingTask):
        task.board = WorkBoard.of_descriptor(descriptors[0])
    return task


def keep_freed_memory() -> bool:
    """Lets glibc's allocator keep what this process frees; returns whether it does.

    By default glibc gives large buffers back to the system, and the system clears each page that a new one touches. For
    batches of tens of megabytes this takes longer than filling them. A process keeps at most what it once needed at the
    same time. Other C libraries, and users who set the allocator's variables themselves, are left alone.
    """
    if any(name in os.environ for name in _SETTINGS_OF_USERS):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(
        set_option(name, value) == 1
        for name, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _PAD_BYTES))
    )


def seed_generators(seed_offset: int, rank: int, number: int, *origin: int) -> None:
    """Seeds the global random generators for hooks that use them; this package does not.

    Args:
        seed_offset: The job's.
        rank: The rank.
        number: Number of the process inside the rank.
        *origin: A hash of the state at which the process starts, so that it does not repeat the draws of an earlier
            start; nothing if it is given none.
    """
    seed = mix(seed_offset, rank, number, *origin) % 2**32
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also query CUDA


class BlockServer(ABC):
    """Serves blocks to another process, each when there is a credit for it.

    Args:
        channel: Connection to the receiver.
        spare_arenas: Free arenas to keep.
        metrics: Those of this process.
        reporter: Reports what it works on.
    """

    block_counter: str
    """Name under which blocks are counted."""
    byte_counter: str
    """Name under which their bytes are counted."""

    def __init__(self, channel: Channel, spare_arenas: int, metrics: Metrics, reporter: WorkReporter) -> None:
        self._channel = channel
        self.metrics = metrics
        self.reporter = reporter
        self._waiting = metrics.clock("wait for trainer")
        self._arenas = ArenaStore(spare_arenas)
        self._report = DropReport(channel, self.metrics)

    @abstractmethod
    def serve(self) -> None:
        """See ProcessTask.serve."""

    def _take_credits(self, credits: Credits) -> None:
        """Takes back the arenas that nobody sees any more."""
        for arena in credits.released_arenas:
            self._arenas.take_back(arena)

    def _send_block(
        self,
        stream: int,
        generation: int,
        block: SerializedBlock,
        device_pieces: list[DevicePiece] | None = None,
        dropped_device_arenas: list[int] | None = None,
    ) -> None:
        """Sends a block.

        Raises:
            WorkerError: The system refused memory for it.
            ConnectionError: The receiver hung up.
        """
        size = block.size
        self.metrics.count(self.block_counter)
        self.metrics.count(self.byte_counter, size)
        payload, arena = bytearray(), None
        if size < SMALL_BLOCK_BYTES:
            payload = bytearray(size)
            block.write(memoryview(payload))
        else:
            arena = self._arenas.take(size)
            block.write(arena.memory.data)
        self.metrics.end_block(stream, size)
        descriptor = None if arena is None else arena.descriptor
        message = BlockSent(
            stream,
            generation,
            -1 if arena is None else arena.number,
            0 if arena is None or descriptor is None else arena.capacity,
            self._arenas.take_dropped(),
            block.extents,
            block.tensors,
            self.metrics.drain(),
            device_pieces,
            dropped_device_arenas,
        )
        self._channel.send(encode(message, payload), () if descriptor is None else (descriptor,))
        if arena is not None:
            arena.close_descriptor()
        self.reporter.note_block()

    def _receive(self, *, wait: bool) -> tuple[bytes, list[int]] | None:
        """Returns the next message of the receiver, if there is one; after it waited for one, if `wait` is set.

        Raises:
            EOFError: The receiver hung up.
        """
        if not wait:
            return self._channel.receive(wait=False)
        outer = self._waiting.begin()
        try:
            return self._channel.receive()
        finally:
            self._waiting.end(outer)

    def _send_failure(self, stream: int, generation: int, error: BaseException) -> None:
        """Sends the exception that ended a stream.

        Raises:
            ConnectionError: The receiver hung up.
        """
        self._channel.send(encode(failed_stream(stream, generation, error, self.metrics.drain())))


class DropReport:
    """Reports the outcomes of samples to the waiting process while none of them makes it into a block.

    Sends at most once per second, and never waits for room.

    Args:
        channel: Connection to the waiting process.
        metrics: Its `on_dropped` calls `send_if_due` from now on.
    """

    def __init__(self, channel: Channel, metrics: Metrics) -> None:
        self._channel = channel
        self._metrics = metrics
        self._last = time.monotonic()
        metrics.on_dropped = self.send_if_due

    def begin_block(self) -> None:
        """Notes that the work on a block begins."""
        self._last = time.monotonic()
        self._metrics.begin_block()

    def send_if_due(self) -> None:
        """Sends the counts, if the last report is a second old."""
        now = time.monotonic()
        if now - self._last < _REPORT_SECONDS:
            return
        self._last = now
        stats = self._metrics.drain()
        sent = False
        with contextlib.suppress(OSError):  # the receiver is gone: sending the next block finds out
            sent = self._channel.send(encode(StillWorking(stats)), wait=False)
        if not sent:
            self._metrics.merge(stats, again=True)
