"""The worker process: runs the part below the hand-over for some streams and sends blocks as the rank takes them."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import random
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from energon_dali.loader.workers import messages
from energon_dali.loader.workers.arena import ArenaStore
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.messages import BlockSent, Progress, StartStream, StreamFailed, WorkerTask
from energon_dali.loader.workers.transport import pack

if TYPE_CHECKING:
    from energon_dali.datasets.hand_over import BlockIterator
    from energon_dali.datasets.recorder import Recorder

SMALL_BLOCK_BYTES = 16 * 1024
"""Blocks below this travel inside the message."""

_PR_SET_PDEATHSIG = 1


def run_worker(channel: Channel, lifeline: int, rank_pid: int, task: WorkerTask | None = None) -> int:
    """Runs a worker until the rank hangs up; returns the exit status.

    Args:
        channel: Connection to the rank. Its first message is a WorkerTask by cloudpickle, unless `task` is given.
        lifeline: Read end of a pipe whose write end only the rank's process holds.
        rank_pid: Process id of this process's parent, whose end is the rank's end.
        task: What to run, where it came by fork.
    """
    _die_with(lifeline, rank_pid)
    _calm_down()
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

    try:
        with pool_context(task.cache_pool):
            WorkerServer(channel, task).serve()
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
        channel.send(messages.encode(_failure(-1, -1, error, None)))
        return None
    return task


def _die_with(lifeline: int, rank_pid: int) -> None:
    """Makes the kernel end this process when the rank's process ends, even while it is inside a long C call.

    Two ways, because each has a hole: SIGIO when the pipe's last writer is gone (a process that the trainer forked may
    hold it open), and the parent-death signal (sent also when only the *thread* that started this process ends, so it
    makes us look, not die).
    """

    def look(*_: object) -> None:
        if os.getppid() != rank_pid:
            os._exit(1)

    signal.signal(signal.SIGUSR2, look)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2)
    look()  # it may have ended before the signal was asked for
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(lifeline, 1) == b"":  # it ended before we listened
            os._exit(1)
    except BlockingIOError:
        pass


def _calm_down() -> None:
    """Leaves Ctrl-C to the rank, the cores to the other workers, and SIGUSR1 to the watchdog."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.stderr is not None:
        try:
            faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        except (OSError, ValueError, AttributeError):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a stderr without a descriptor
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # read by libraries that are imported later
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _seed(task: WorkerTask) -> None:
    """Seeds the global random generators for hooks that use them; nothing of ours does."""
    from energon_dali.plan import mix

    seed = mix(task.seed_offset, task.rank, task.worker) % 2**32
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.set_num_threads(1)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also ask about CUDA


class _Stream:
    """One stream as its worker knows it."""

    __slots__ = ("credits", "ended", "generation", "iterator", "produced")

    def __init__(self, iterator: BlockIterator, generation: int, credits: int) -> None:
        self.iterator = iterator
        self.generation = generation
        self.credits = credits
        self.produced = 0
        self.ended = False


class WorkerServer:
    """Serves the streams of a worker: produces a block where the rank has room for one, the most needed first.

    Args:
        channel: Connection to the rank.
        task: What to run.
    """

    def __init__(self, channel: Channel, task: WorkerTask) -> None:
        from energon_dali.datasets.recorder import Recorder

        self._channel = channel
        self._task = task
        self._num_streams = task.hand_overs[0].worker_config.layout.num_streams
        self._recorder: Recorder = Recorder()
        self._arenas = ArenaStore(task.spare_arenas)
        self._streams: dict[int, _Stream] = {}

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
        from energon_dali.datasets.base import StreamContext

        self._stop(message.stream)
        try:
            number, stream = divmod(message.stream, self._num_streams)
            context = StreamContext(stream, self._recorder, in_worker=True)
            iterator = self._task.hand_overs[number].open_blocks(context)
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
        try:
            block = stream.iterator.next_block()
            stream.credits -= 1
            stream.produced += 1
            stream.ended = block.end_state is not None
            # Also here: an element that cannot be pickled ends its stream with the reason.
            parcel = pack((block.elements, block.states, block.keys, block.end_state))
        except Exception as error:
            self._streams.pop(number)
            self._fail(number, stream.generation, error)
            return
        extents = parcel.extents
        size = sum(extents[-1])
        self._recorder.count("blocks")
        self._recorder.count("blocks.bytes", size)
        if size < SMALL_BLOCK_BYTES:
            payload = bytearray(size)
            parcel.write(memoryview(payload), extents)
            sent = BlockSent(
                number, stream.generation, -1, 0, self._arenas.take_dropped(), extents, self._recorder.drain()
            )
            self._channel.send(messages.encode(sent, payload))
            return
        arena = self._arenas.take(size)
        parcel.write(arena.memory.data, extents)
        new = () if arena.descriptor is None else (arena.descriptor,)
        sent = BlockSent(
            number, stream.generation, arena.number, arena.capacity if new else 0, self._arenas.take_dropped(), extents,
            self._recorder.drain(),
        )  # fmt: skip
        self._channel.send(messages.encode(sent), new)
        arena.forget_descriptor()

    def _fail(self, number: int, generation: int, error: Exception) -> None:
        self._channel.send(messages.encode(_failure(number, generation, error, self._recorder.drain())))


def _failure(number: int, generation: int, error: Exception, record: dict[str, Any] | None) -> StreamFailed:
    """Returns the message about an exception; one that does not survive pickling travels as text."""
    pickled = None
    try:
        pickled = b"".join(pack(error).pieces)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return StreamFailed(number, generation, pickled, summary, text, record)
