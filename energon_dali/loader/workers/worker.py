"""The worker process: runs the part below the worker border of some streams and sends blocks as the rank takes them."""

from __future__ import annotations

import gc
import pickle
import sys
from typing import TYPE_CHECKING, Any

from energon_dali.errors import WorkerError
from energon_dali.loader.state_transfer import StateSender
from energon_dali.loader.workers import messages
from energon_dali.loader.workers.arena import ArenaStore
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.failure import failed_stream
from energon_dali.loader.workers.lifeline import calm_down, die_with, seed_generators
from energon_dali.loader.workers.messages import BlockSent, Progress, StartStream, WorkerTask
from energon_dali.loader.workers.report import DropReport
from energon_dali.loader.workers.transport import Parcel, pack

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.worker_border import BlockIterator

SMALL_BLOCK_BYTES = 16 * 1024
"""Blocks below this travel inside the message."""


def run_worker(channel: Channel, lifeline: int, rank_pid: int, task: WorkerTask | None = None) -> int:
    """Runs a worker until the rank hangs up; returns the exit status.

    Args:
        channel: Connection to the rank. Its first message is a WorkerTask by cloudpickle, unless `task` is given.
        lifeline: Read end of a pipe whose write end only the rank's process holds.
        rank_pid: Process id of this process's parent, whose end is the rank's end.
        task: What to run, where it came by fork.
    """
    die_with(lifeline, rank_pid)
    calm_down()
    try:
        task = task or _receive_task(channel)
        if task is None:
            return 0
        _seed(task)
        gc.freeze()  # the dataset lives as long as the process: no collection needs to walk it
        _serve(channel, task)
    except (EOFError, ConnectionError):
        return 0  # the rank hung up: that is how a worker ends
    return 0


def _serve(channel: Channel, task: WorkerTask) -> None:
    """Serves until the rank hangs up, and takes the files of the cache away."""
    from energon_dali.cache import pool_context
    from energon_dali.shards.storage.retry import RetryScope, retry_scope

    server = WorkerServer(channel, task)
    try:
        with pool_context(task.cache_pool), retry_scope(RetryScope(task.retry_policy, server.metrics.count)):
            server.serve()
    finally:
        if task.cache_pool is not None:
            task.cache_pool.close()


def _receive_task(channel: Channel) -> WorkerTask | None:
    """Returns the task, or None after telling the rank why it cannot be unpickled here."""
    first = channel.receive()
    assert first is not None
    try:
        task: WorkerTask = pickle.loads(first[0])
    except Exception as error:
        channel.send(messages.encode(failed_stream(-1, -1, error, None)))
        return None
    return task


def _seed(task: WorkerTask) -> None:
    """Seeds the global generators, and leaves the cores to the other workers where torch is loaded already."""
    seed_generators(task.seed_offset, task.rank, task.worker)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


class _Stream:
    """One stream as its worker knows it."""

    __slots__ = ("credits", "ended", "generation", "iterator", "produced", "states")

    def __init__(self, iterator: BlockIterator, generation: int, credits: int) -> None:
        self.iterator = iterator
        self.generation = generation
        self.credits = credits
        self.produced = 0
        self.states = StateSender()
        self.ended = False


class WorkerServer:
    """Serves the streams of a worker: produces a block where the rank has room for one, the most needed first.

    Args:
        channel: Connection to the rank.
        task: What to run.
    """

    def __init__(self, channel: Channel, task: WorkerTask) -> None:
        from energon_dali.datasets.metrics import Metrics

        self._channel = channel
        self._task = task
        self._num_streams = task.borders[0].worker_config.layout.num_streams
        self.metrics: Metrics = Metrics()
        self._arenas = ArenaStore(task.spare_arenas)
        self._streams: dict[int, _Stream] = {}
        self._report = DropReport(channel, self.metrics, lambda record: messages.encode(messages.StillAtWork(record)))

    def serve(self) -> None:
        """Runs until the rank hangs up.

        Raises:
            EOFError: The rank hung up.
            ConnectionError: The rank hung up while a block was being sent.
        """
        while True:
            stream = self._most_needed()
            received = self._channel.receive(wait=stream is None)
            if received is not None:
                self._handle(messages.decode(received[0])[0])
            elif stream is not None:
                self._produce(stream)

    def _most_needed(self) -> int | None:
        """Returns the stream with room whose next block the rank needs first: elements are delivered round robin."""
        best: tuple[int, int] | None = None
        for number, stream in self._streams.items():
            if stream.credits and not stream.ended and (best is None or (stream.produced, number) < best):
                best = (stream.produced, number)
        return None if best is None else best[1]

    def _handle(self, message: Any) -> None:
        if isinstance(message, StartStream):
            self._start(message)
        elif isinstance(message, Progress):
            for number, credits in message.credits.items():
                if number in self._streams:
                    self._streams[number].credits += credits
            for number in message.next_epoch:
                if number in self._streams:
                    self._streams[number].ended = False
            for arena in message.unseen_arenas:
                self._arenas.give_back(arena)

    def _start(self, message: StartStream) -> None:
        from energon_dali.datasets.stream import StreamContext

        self._stop(message.stream)
        try:
            number, stream = divmod(message.stream, self._num_streams)
            context = StreamContext(stream, self.metrics, in_worker=True)
            iterator = self._task.borders[number].open_blocks(context)
            iterator.load_state_dict(message.state)
        except Exception as error:
            self._fail(message.stream, message.generation, error)
            return
        self._streams[message.stream] = _Stream(iterator, message.generation, message.credits)

    def _stop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.iterator.close()

    def _produce(self, number: int) -> None:
        stream = self._streams[number]
        self._report.begin()
        try:
            block = stream.iterator.next_block()
            stream.credits -= 1
            stream.produced += 1
            stream.ended = block.end_state is not None
            # Also here: an element that cannot be pickled ends its stream with the reason.
            parcel = pack((block.elements, stream.states.send((block.states, block.end_state)), block.keys))
        except Exception as error:
            self._streams.pop(number)
            self._fail(number, stream.generation, error)
            return
        try:
            self._send(number, stream.generation, parcel)
        except WorkerError as error:  # there is no memory for it
            self._streams.pop(number)
            self._fail(number, stream.generation, error)

    def _send(self, number: int, generation: int, parcel: Parcel) -> None:
        """Sends a block to the rank.

        Raises:
            WorkerError: There is no memory that it could be sent in.
            ConnectionError: The rank hung up.
        """
        extents = parcel.extents
        size = sum(extents[-1])
        self.metrics.count("blocks")
        self.metrics.count("blocks.bytes", size)
        if size < SMALL_BLOCK_BYTES:
            payload = bytearray(size)
            parcel.write(memoryview(payload), extents)
            sent = BlockSent(number, generation, -1, 0, self._arenas.take_dropped(), extents, self.metrics.drain())
            self._channel.send(messages.encode(sent, payload))
            return
        arena = self._arenas.take(size)
        parcel.write(arena.memory.data, extents)
        new = () if arena.descriptor is None else (arena.descriptor,)
        sent = BlockSent(
            number,
            generation,
            arena.number,
            arena.capacity if new else 0,
            self._arenas.take_dropped(),
            extents,
            self.metrics.drain(),
        )
        self._channel.send(messages.encode(sent), new)
        arena.forget_descriptor()

    def _fail(self, number: int, generation: int, error: Exception) -> None:
        self._channel.send(messages.encode(failed_stream(number, generation, error, self.metrics.drain())))
