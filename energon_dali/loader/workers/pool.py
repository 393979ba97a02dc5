"""The workers of a rank as one source of blocks: keeps them busy, and puts each stream's blocks in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from energon_dali.datasets.stream import Block
from energon_dali.loader.processes.messages import (
    WHOLE_PROCESS,
    BlockSent,
    Message,
    StartStream,
    StateReceiver,
    StillWorking,
    StreamFailed,
    rebuild_error,
)
from energon_dali.loader.processes.process_group import ProcessGroup, ServedProcess
from energon_dali.loader.processes.serialization import deserialize
from energon_dali.loader.processes.work_board import WorkBoard
from energon_dali.loader.workers.worker import WorkerTask

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import State
    from energon_dali.datasets.worker_border import WorkerBorder
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.processes.shared_memory import ArenaViews


class WorkerPool(ProcessGroup):
    """Runs the streams of a rank in worker processes; a BlockSource.

    Only one thread at a time may ask for blocks; `close` may be called from any thread.

    Args:
        borders: The worker borders of a tree, by number; workers run what is below them.
        metrics: Takes what the workers count.
        options: The loader's. Workers make `prefetch_factor` blocks per stream ahead; with more than two borders, twice
            as many over all of them, but at least one for each.
        board: Where the workers report what they work on, if this process is not the trainer's.
    """

    def __init__(
        self,
        borders: Sequence[WorkerBorder],
        metrics: Metrics,
        options: LoaderOptions,
        board: WorkBoard | None = None,
    ) -> None:
        board = board or WorkBoard(1 + max(1, borders[0].worker_config.num_workers))
        super().__init__(metrics, options.start_method, "The worker processes were", uses_device=False, board=board)
        self._clock = metrics.clock("wait for workers")
        self._borders = list(borders)
        self._options = replace(options, start_method=self._method)
        # A blend of many sources must not hold the full number of blocks of each: one or two will do.
        prefetch = options.prefetch_factor
        self._prefetch = max(1, -(-2 * prefetch // len(borders))) if len(borders) > 2 else prefetch
        self.on_wait: Callable[[float], None] | None = None
        """Called about once per second while a block is waited for, with the seconds waited so far; may raise."""
        self._streams: dict[int, _Stream] = {}
        self._beginning: State | None = None
        """Where streams begin; None is the beginning of the borders' trees."""
        self._config = config = borders[0].worker_config
        self._worker_of = {
            border.block_stream(stream): worker
            for border in borders
            for worker in range(max(1, config.num_workers))
            for stream in config.layout.worker_streams(config.rank, worker)
        }

    def launch(self) -> None:
        """Starts the processes if they have not been started; returns at once.

        Raises:
            WorkerError: What the workers need cannot be pickled, or the pool is closed.
        """
        self._check_open()
        if self._members:
            return
        tasks = [self._task(worker) for worker in range(max(1, self._config.num_workers))]
        pickled = [self._pickle(task, "a worker process", 'start_method="fork"') for task in tasks]
        for task, data in zip(tasks, pickled, strict=True):
            self._start(f"Worker {task.worker} of rank {task.rank}", task, data)
        self._board.close_file()

    def _task(self, worker: int) -> WorkerTask:
        config = self._config
        # One arena per block on the way, and one in the hands of each side.
        spare_arenas = 2 + self._prefetch * sum(one == worker for one in self._worker_of.values())
        return WorkerTask(self._borders, config.rank, worker, config.seed_offset, spare_arenas, self._options)

    def start_all(self, streams: Iterable[int], cursor: State | None) -> None:
        """Starts streams of the job at their beginning below every border, so that all workers start at once.

        Args:
            streams: Their numbers.
            cursor: With global batches, where they begin, whatever the trees of the workers begin with.
        """
        self._beginning = cursor
        for stream in streams:
            for border in self._borders:
                self.start(border.block_stream(stream), None)

    def start(self, stream: int, state: State | None) -> None:
        """Starts a stream at a state, or at its beginning; a stream that runs is restarted there."""
        before = self._streams.get(stream)
        fresh, state = state is None, self._beginning if state is None else state
        if before is not None and fresh and before.waits_at(state):
            return  # it was started ahead of time
        new = _Stream(stream, 0 if before is None else before.generation + 1, state, fresh=fresh)
        self._streams[stream] = new
        self.launch()
        worker = self._members[self._worker_of[stream]]
        worker.starts.append(StartStream(stream, new.generation, state, self._prefetch))
        if before is not None:
            worker.credits.released_arenas += before.discard()
            worker.credits.blocks.pop(stream, None)
            if stream in worker.credits.next_epoch:
                worker.credits.next_epoch.remove(stream)
        worker.flush()

    def ready(self, stream: int) -> bool:
        """Returns whether `next_block` would return or raise at once."""
        entry = self._streams.get(stream)
        if entry is None or entry.paused:
            return False
        worker = self._members[self._worker_of[stream]]
        while not (entry.blocks or entry.error or worker.failure):
            if not self._receive(worker):
                return False
        return True

    def next_block(self, stream: int) -> Block:
        """Returns the next block of a stream; waits for it.

        Raises:
            WorkerDiedError: A worker process ended unexpectedly.
            WorkerError: The pool is closed, or an exception of a worker cannot be rebuilt here.
            Exception: Whatever error ended the stream in the worker.
        """
        self._check_open()
        if stream not in self._streams:
            self.start(stream, None)
        entry = self._streams[stream]
        worker = self._members[self._worker_of[stream]]
        if entry.paused:
            entry.paused = False
            worker.credits.next_epoch.append(stream)
        if not entry.blocks:
            outer = self._clock.begin(str(self._worker_of[stream]))
            try:
                self._wait_for_block(entry, worker)
            finally:
                self._clock.end(outer)
        block = entry.take(worker.views)
        worker.credits.blocks[stream] = worker.credits.blocks.get(stream, 0) + 1
        worker.flush()
        return block

    def _wait_for_block(self, entry: _Stream, worker: ServedProcess) -> None:
        """Waits for the next block of a stream.

        Raises:
            Exception: See `next_block`.
        """
        started: float | None = None
        while not entry.blocks:
            if entry.error is not None:
                raise entry.error
            if worker.failure is not None:
                raise worker.failure
            for member in self._members:
                member.flush()
            started = started or time.monotonic()
            self._wait()
            waited_seconds = time.monotonic() - started
            if self.on_wait is not None and waited_seconds >= 1.0 and not entry.blocks:
                self.on_wait(waited_seconds)

    def _handle(self, member: ServedProcess, message: Message, payload: memoryview) -> None:
        assert isinstance(message, (BlockSent, StillWorking, StreamFailed))
        self._metrics.merge(message.stats)
        if isinstance(message, BlockSent):
            if not self._streams[message.stream].accept(message, payload) and message.arena >= 0:
                member.credits.released_arenas.append(message.arena)
        elif isinstance(message, StreamFailed):
            where = f"worker {self._members.index(member)}"
            if message.stream == WHOLE_PROCESS:
                member.failure = rebuild_error(message, where)
            else:
                self._streams[message.stream].fail(message, where)


class _Stream:
    """What the rank has of a stream that a worker runs: blocks to be taken, or the error that ended it.

    Args:
        stream: Its number.
        generation: How often it was started before.
        start: The state at which it starts.
        fresh: Whether that is its beginning.
    """

    __slots__ = ("_fresh", "_start", "_states", "_taken", "blocks", "error", "generation", "paused", "stream")

    def __init__(self, stream: int, generation: int, start: State | None, *, fresh: bool) -> None:
        self.stream = stream
        self._start = start
        self.generation = generation
        self.blocks: deque[tuple[BlockSent, memoryview]] = deque()
        self.error: Exception | None = None
        self.paused = False
        """Whether the last block ended an epoch: the worker waits until the next is asked for."""
        self._fresh = fresh
        self._taken = False
        self._states = StateReceiver()

    def waits_at(self, beginning: State | None) -> bool:
        """Returns whether it started at a beginning and no block was taken."""
        return self._fresh and not self._taken and self._start == beginning

    def accept(self, message: BlockSent, payload: memoryview) -> bool:
        """Queues a block; returns False for one of an earlier start."""
        if message.generation != self.generation:
            return False
        self.blocks.append((message, payload))
        return True

    def take(self, views: ArenaViews) -> Block:
        """Returns the first block; its large buffers are views of the worker's arena."""
        message, payload = self.blocks.popleft()
        self._taken = True
        source = payload if message.arena < 0 else views.view(message.arena)
        elements, sent, keys = deserialize(source, message.extents)
        states, end_state = self._states.take(sent)
        self.paused = end_state is not None
        return Block(self.stream, elements, states, keys, end_state)

    def fail(self, message: StreamFailed, where: str) -> None:
        """Notes the exception that ended the stream; blocks from before it are still delivered."""
        if message.generation == self.generation:
            self.error = rebuild_error(message, f"{where}, stream {message.stream}")

    def discard(self) -> list[int]:
        """Drops the blocks that were not taken; returns their arenas."""
        arenas = [message.arena for message, _ in self.blocks if message.arena >= 0]
        self.blocks.clear()
        return arenas
