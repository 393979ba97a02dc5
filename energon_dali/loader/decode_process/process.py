"""The decode process: it runs the rank's pipeline, hooks included, and the trainer takes its batches."""

from __future__ import annotations

import functools
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.trace import child_metrics
from energon_dali.errors import ConfigError, WorkerError
from energon_dali.loader.decode_process.device_memory import DeviceViews
from energon_dali.loader.processes.messages import (
    BlockSent,
    Credits,
    EpochEnded,
    FinalStats,
    Message,
    StateReceiver,
    StillWorking,
    StreamFailed,
    decode,
    encode,
    rebuild_error,
)
from energon_dali.loader.processes.process_group import ProcessGroup, ServedProcess, end_members
from energon_dali.loader.processes.serialization import deserialize, serialize
from energon_dali.loader.processes.server import BlockServer, ReportingTask, seed_generators
from energon_dali.loader.processes.signals import forward_stack_requests, interrupts_deferred
from energon_dali.loader.processes.work_board import WorkBoard, WorkReporter

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.processes.shared_memory import Channel
    from energon_dali.loader.rank_pipeline import RankPipeline
    from energon_dali.loader.workers.pool import WorkerPool

STREAM = 0
"""The number under which batches are sent."""


@dataclass(slots=True, eq=False)
class DecodeTask(ReportingTask):
    """What a decode process runs."""

    dataset: SavableDataset[Any]
    """The tree, with its worker borders."""
    state: State | None
    """Where to start; None is the beginning."""
    options: LoaderOptions
    """The loader's."""
    device: int | None
    """The trainer's GPU; None if it does not use one yet."""

    @property
    def process_name(self) -> str:
        return "decode process"

    @property
    def board_region(self) -> int:
        return 0

    def prepare(self) -> None:
        """Takes the trainer's GPU, seeds the global generators, and limits torch to one thread, as in workers.

        Torch's threads wait for each other actively. Next to DALI's, which keep all cores busy, small operations took
        ten times as long (measured on two cores).
        """
        import torch

        from energon_dali.decode.dali.runtime.device import follow_local_rank

        torch.set_num_threads(1)
        if self.device is None:
            follow_local_rank()  # the trainer has not chosen its GPU yet
        else:
            torch.cuda.set_device(self.device)
        config = self.dataset.worker_config
        seed_generators(config.seed_offset, config.rank, config.num_workers)  # the number after the last worker's

    def serve(self, channel: Channel) -> None:
        """Serves batches until the trainer hangs up.

        Raises:
            EOFError: The trainer hung up.
            ConnectionError: The trainer hung up while a batch was being sent.
        """
        assert self.board is not None
        DecodeServer(channel, self, self.board).serve()


class DecodeServer(BlockServer):
    """Makes batches where the trainer has room for them.

    Args:
        channel: Connection to the trainer.
        task: What to run.
        board: Where it and its workers report what they work on.
    """

    block_counter = "decode_process.batches"
    byte_counter = "decode_process.bytes"

    def __init__(self, channel: Channel, task: DecodeTask, board: WorkBoard) -> None:
        from energon_dali.loader.decode_process.device_memory import DeviceArenaStore
        from energon_dali.loader.processes.messages import StateSender

        # One arena per credit, one in the trainer's hands, and one for the batch that is being made.
        spare_arenas = task.options.prefetch_factor + 2
        metrics = child_metrics(task.dataset.worker_config, task.process_name, 1)
        super().__init__(channel, spare_arenas, metrics, WorkReporter(board, task.board_region, metrics))
        self._board = board
        self._task = task
        self._working = metrics.clock("rank")
        self._device_arenas = DeviceArenaStore(spare_arenas)
        self._pipeline: RankPipeline | None = None
        self._states = StateSender()
        self._room = 0
        self._ended = False
        self._failed = False

    def serve(self) -> None:
        """Runs until the trainer hangs up. After it asked to stop, only to keep its GPU memory valid.

        Raises:
            EOFError: The trainer hung up.
            ConnectionError: The trainer hung up while a batch was being sent.
        """
        try:
            self._open()
            self._board.close_file()
            self.reporter.start()
            while self._receive_credits(wait=not self._room or self._ended):
                if self._room and not self._ended:
                    outer = self._working.begin()  # copying a batch as well as making it
                    try:
                        self._produce()
                    finally:
                        self._working.end(outer)
            self.reporter.write()
            self._channel.send(encode(FinalStats(self.metrics.drain())))
        finally:
            if self._pipeline is not None:
                self._pipeline.close()
            if self._task.options.cache_pool is not None:
                self._task.options.cache_pool.close()
        while True:  # the trainer may still see this process's memory on a GPU
            self._channel.receive()

    def _open(self) -> None:
        """Builds the rank's pipeline, or sends the reason why that failed."""
        from energon_dali.loader.rank_pipeline import RankPipeline

        def prepare_pool(pool: WorkerPool) -> None:
            forward_stack_requests(pool.show_stacks)
            pool.on_wait = lambda waited_seconds: self._report.send_if_due()

        task = self._task
        try:
            self._pipeline = RankPipeline(
                task.dataset, self.metrics, task.options, task.state, on_pool=prepare_pool, board=self._board
            )
        except Exception as error:
            self._fail(error)

    def _receive_credits(self, *, wait: bool) -> bool:
        """Handles all messages of the trainer that have arrived; returns False if it wants to stop."""
        while (received := self._receive(wait=wait)) is not None:
            wait = False
            message, _ = decode(received[0])
            assert isinstance(message, Credits)
            self._room += message.blocks.get(STREAM, 0)
            if message.next_epoch and not self._failed:
                self._ended = False
            self._take_credits(message)
            for arena in message.released_device_arenas:
                self._device_arenas.give_back(arena)
            for arena in message.closed_device_arenas:
                self._device_arenas.free(arena)
            if message.stop:
                return False
        return True

    def _produce(self) -> None:
        """Makes a batch and sends it, or the end of the epoch, or an error."""
        assert self._pipeline is not None
        rank = self._pipeline.iterator
        self._report.begin_block()
        try:
            batch = next(rank)
            block = serialize((batch, self._states.send(rank.snapshot())), keep_aliasing=True)
            device_pieces = self._device_arenas.store(block.device_segments)
        except StopIteration:
            self._ended = True
            self._channel.send(encode(EpochEnded(rank.state_dict(), self.metrics.drain())))
            return
        except BaseException as error:  # also a batch that cannot be pickled, and a hook that calls sys.exit
            self._fail(error)
            return
        self._room -= 1
        try:
            self._send_block(STREAM, 0, block, device_pieces, self._device_arenas.take_dropped())
        except WorkerError as error:  # there is no memory for it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._ended = self._failed = True
        self._send_failure(STREAM, 0, error)


_FINAL_STATS_SECONDS = 0.5
"""How long `close` waits for the last statistics."""


class DecodeProcess(ProcessGroup):
    """Takes batches from a decode process, which has been started. To the trainer's thread it is the rank's iterator.

    Only one thread at a time may ask for batches; `interrupt` and `close` may be called from any thread.

    Args:
        task: What it runs.
        metrics: Takes what it and its workers count.
        first_state: Returns the state before the first batch.

    Raises:
        ConfigError: The start method cannot work here.
        WorkerError: The dataset cannot be pickled.
    """

    def __init__(self, task: DecodeTask, metrics: Metrics, first_state: Callable[[], State]) -> None:
        check_fork(task.options.start_method)
        self._device_views = DeviceViews()
        end = functools.partial(_end_when_unseen, self._device_views)
        super().__init__(
            metrics,
            task.options.start_method,
            "The decode process was",
            uses_device=True,
            board=WorkBoard(1 + max(1, task.dataset.worker_config.num_workers)),
            end=end,
        )
        self._waiting: deque[tuple[Message, memoryview]] = deque()
        self._state: Callable[[], State] | State = first_state
        self._states = StateReceiver()
        self.metrics = Metrics()
        """Nothing is dropped in this process."""
        try:
            pickled = self._pickle(task, "the decode process", 'decode_process=False or start_method="fork"')
            name = f"The decode process of rank {task.dataset.worker_config.rank}"
            self._process = self._start(name, task, pickled)
            self._board.close_file()
        except BaseException:
            self._end()
            self._board.close_file()
            raise
        self._process.credits.blocks[STREAM] = task.options.prefetch_factor

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.process.pid

    def note_streams(self) -> None:
        """Notes the CUDA streams that are current in the calling thread, the trainer's: it uses batches on them."""
        self._device_views.note_streams()

    def __iter__(self) -> DecodeProcess:
        return self

    def __next__(self) -> Any:
        """Returns the next batch; waits for it.

        Raises:
            StopIteration: The epoch is over.
            WorkerDiedError: The process ended unexpectedly.
            WorkerError: It was closed, or its exception cannot be rebuilt here.
            Exception: Whatever ended the iteration there.
        """
        self._flush()
        while not self._waiting:
            if self._process.failure is not None:
                raise self._process.failure
            self._check_open()
            self._wait()
            self._flush()
        message, payload = self._waiting.popleft()
        if isinstance(message, StreamFailed):
            raise rebuild_error(message, "the decode process")
        if isinstance(message, EpochEnded):
            self._process.credits.next_epoch.append(STREAM)  # sent when the next batch is asked for
            self._state = message.state
            raise StopIteration
        assert isinstance(message, BlockSent)
        credits = self._process.credits.blocks
        credits[STREAM] = credits.get(STREAM, 0) + 1
        source = payload if message.arena < 0 else self._process.views.view(message.arena)
        device_segments = self._device_views.view(message.device_pieces or [])
        batch, sent = deserialize(source, message.extents, message.tensors, device_segments)
        self._state = self._states.take(sent)
        return batch

    def snapshot(self) -> State:
        """Returns the state after the last batch, for `stream.plain`."""
        if callable(self._state):
            self._state = self._state()
        return self._state

    def _flush(self) -> None:
        """Sends what the process has not received yet, as far as there is room."""
        credits = self._process.credits
        credits.released_device_arenas += self._device_views.take_released()
        credits.closed_device_arenas += self._device_views.take_closed()
        self._process.flush()

    def _handle(self, member: ServedProcess, message: Message, payload: memoryview) -> None:
        assert isinstance(message, (BlockSent, StillWorking, EpochEnded, StreamFailed, FinalStats))
        self._metrics.merge(message.stats)
        if isinstance(message, BlockSent) and message.dropped_device_arenas:
            self._device_views.drop(message.dropped_device_arenas)
        if not isinstance(message, StillWorking):
            self._waiting.append((message, payload))

    def close(self) -> None:
        """Ends the process and its workers; may be called again. Batches that are held stay valid."""
        if not self._end.alive:
            return
        with interrupts_deferred():
            if self._owner == os.getpid():  # else this is a forked copy of the trainer
                self._receive_final_stats()
            self._process.views.drop_all()
            self._end()
            self._metrics.note_end_of(self._board)

    def _receive_final_stats(self) -> None:
        """Asks for the last statistics and waits a moment for them; batches that arrive before them are dropped."""
        deadline = time.monotonic() + _FINAL_STATS_SECONDS
        self._poll.unregister(self._wake)
        self._process.credits.stop = True
        self._flush()
        while not self._process.at_end and (left := deadline - time.monotonic()) > 0:
            if self._waiting and isinstance(self._waiting[-1][0], FinalStats):
                break
            self._poll.poll(1000 * left)
            self._receive(self._process)
        self._waiting.clear()


def check_fork(method: str) -> None:
    """Raises ConfigError where a decode process cannot be forked: CUDA does not work in a copy of this process."""
    torch = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.cuda.is_initialized():
        raise ConfigError(
            'start_method="fork" with a decode process copies this process, and CUDA, which is in use here, does not '
            'work in a copy. Use start_method="spawn", take the first batch before anything touches CUDA, or use '
            "decode_process=False."
        )


_views_to_outlive: set[DeviceViews] = set()
"""Views of processes that end when nobody sees their GPU memory any more. Nothing else may hold these by then."""


def _end_when_unseen(device_views: DeviceViews, members: list[ServedProcess], wake: io.FileIO, owner: int) -> None:
    """Ends a decode process; if its GPU memory is still seen, when that is over."""
    todo = [True]
    exiting = sys.is_finalizing

    def end() -> None:
        if exiting():  # the tensors go with the interpreter, and its end is the process's end
            return
        try:
            todo.pop()
        except IndexError:  # the last view went in another thread, which ends the process
            return
        _views_to_outlive.discard(device_views)
        if os.getpid() == owner:  # else this is a forked copy of the trainer, which leaves the process alone
            device_views.close()  # before the process that owns the memory frees it
        end_members(members, wake, owner)

    if os.getpid() == owner and device_views.seen:
        _views_to_outlive.add(device_views)
        device_views.on_nothing_seen = end
    if os.getpid() != owner or not device_views.seen:  # asked again: the last view may have gone meanwhile
        end()
