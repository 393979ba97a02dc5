"""The decode process: runs the rank's part, hooks included, and sends finished batches as the trainer takes them."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from energon_dali.loader.decode_process.batch import pack_batch
from energon_dali.loader.decode_process.messages import CODEC, BatchSent, EpochEnded, Farewell, Wanted
from energon_dali.loader.workers.failure import failed_stream
from energon_dali.loader.workers.lifeline import calm_down, die_with, seed_generators
from energon_dali.loader.workers.messages import StillAtWork
from energon_dali.loader.workers.report import DropReport

if TYPE_CHECKING:
    from energon_dali.datasets.stream import State
    from energon_dali.loader.decode_process.messages import DecodeTask
    from energon_dali.loader.rank_part import RankPart
    from energon_dali.loader.workers.channel import Channel
    from energon_dali.loader.workers.pool import WorkerPool

SMALL_BATCH_BYTES = 16 * 1024
"""Batches below this travel inside the message."""

REBUILD = -1
"""Number of the stream in the message that the dataset could not be rebuilt."""


def run_decode_process(channel: Channel, lifeline: int, trainer_pid: int, task: DecodeTask | None = None) -> int:
    """Runs a decode process until the trainer hangs up; returns the exit status.

    Args:
        channel: Connection to the trainer. Its first message is a DecodeTask by cloudpickle, unless `task` is given.
        lifeline: Read end of a pipe whose write end only the trainer's process holds.
        trainer_pid: Process id of this process's parent, whose end is the trainer's end.
        task: What to run, where it came by fork.
    """
    die_with(lifeline, trainer_pid)
    pools: list[WorkerPool] = []

    def show_workers() -> None:
        for pool in pools:
            pool.show_stacks()

    calm_down(on_stacks=show_workers)
    with contextlib.suppress(EOFError, ConnectionError):  # the trainer hung up: that is how this process ends
        task = task or _receive_task(channel)
        if task is not None:
            _prepare(task)
            DecodeServer(channel, task, pools).serve()
    return 0


def _receive_task(channel: Channel) -> DecodeTask | None:
    """Returns the task, or None after telling the trainer why it cannot be unpickled here."""
    first = channel.receive()
    assert first is not None
    try:
        task: DecodeTask = pickle.loads(first[0])
    except Exception as error:
        channel.send(CODEC.encode(failed_stream(REBUILD, 0, error, None)))
        return None
    return task


def _prepare(task: DecodeTask) -> None:
    """Gives this process the trainer's GPU, seeds of its own, and torch one thread, as in workers.

    Several threads of torch's wait for each other actively; beside DALI's, which have work for all cores, small
    operations took ten times as long (measured on two cores).
    """
    import torch

    from energon_dali.decode.dali.runtime.device import follow_local_rank

    torch.set_num_threads(1)
    if task.device is None:
        follow_local_rank()  # the trainer has not taken its GPU yet
    else:
        torch.cuda.set_device(task.device)
    config = task.dataset.worker_config
    seed_generators(config.seed_offset, config.rank, config.num_workers)  # the number behind the last worker's
    gc.freeze()  # the dataset lives as long as the process: no collection needs to walk it


class DecodeServer:
    """Makes batches where the trainer has room for them.

    Args:
        channel: Connection to the trainer.
        task: What to run.
        pools: The pool of the workers is put here.
    """

    def __init__(self, channel: Channel, task: DecodeTask, pools: list[WorkerPool]) -> None:
        from energon_dali.datasets.metrics import Metrics
        from energon_dali.loader.decode_process.device_memory import DeviceArenaStore
        from energon_dali.loader.state_transfer import StateSender
        from energon_dali.loader.workers.arena import ArenaStore

        self._channel = channel
        self._task = task
        self._pools = pools
        self._metrics = Metrics()
        self._rank: RankPart | None = None
        # One batch per credit, one in the trainer's hands, and one that is being made.
        self._arenas = ArenaStore(task.prefetch + 2)
        self._device_arenas = DeviceArenaStore(task.prefetch + 2)
        self._states = StateSender()
        self._room = 0
        self._ended = False
        self._failed = False
        self._report = DropReport(channel, self._metrics, lambda record: CODEC.encode(StillAtWork(record)))

    def serve(self) -> None:
        """Runs until the trainer hangs up; after it said that it wants to stop only for the sake of its GPU memory.

        Raises:
            EOFError: The trainer hung up.
            ConnectionError: The trainer hung up while a batch was being sent.
        """
        try:
            self._open()
            while self._heard(wait=not self._room or self._ended):
                if self._room and not self._ended:
                    self._produce()
            self._channel.send(CODEC.encode(Farewell(self._metrics.drain())))
        finally:
            if self._rank is not None:
                self._rank.close()
            if self._task.cache_pool is not None:
                self._task.cache_pool.close()
        while True:  # the trainer may still look at this process's memory on a GPU
            self._channel.receive()

    def _open(self) -> None:
        """Builds the rank's part, or tells the trainer why that cannot be."""
        from energon_dali.loader.rank_part import RankPart

        task = self._task
        # Python does not let the processes of a fork server have processes of that kind.
        method = "spawn" if task.start_method == "forkserver" else task.start_method
        try:
            self._rank = RankPart(
                task.dataset,
                self._metrics,
                state=task.state,
                prefetch_factor=task.prefetch,
                start_method=method,
                cache_pool=task.cache_pool,
                retry_policy=task.retry_policy,
                on_pool=self._pools.append,
            )
        except Exception as error:
            self._fail(error)
            return
        if self._rank.pool is not None:
            self._rank.pool.on_wait = lambda waited_seconds: self._report.tell()

    def _heard(self, *, wait: bool) -> bool:
        """Takes note of all that the trainer said; returns False if it wants to stop."""
        while (received := self._channel.receive(wait=wait)) is not None:
            wait = False
            message, _ = CODEC.decode(received[0])
            assert isinstance(message, Wanted)
            self._room += message.batches
            if message.next_epoch and not self._failed:
                self._ended = False
            for arena in message.unseen_arenas:
                self._arenas.give_back(arena)
            for arena in message.unseen_device_arenas:
                self._device_arenas.give_back(arena)
            for arena in message.closed_device_arenas:
                self._device_arenas.closed(arena)
            if message.stop:
                return False
        return True

    def _produce(self) -> None:
        """Makes a batch and sends it, or what came in its place."""
        assert self._rank is not None
        rank = self._rank.iterator
        self._report.begin()
        try:
            data, descriptors = self._encoded(next(rank), rank.snapshot)
        except StopIteration:
            self._ended = True
            data, descriptors = CODEC.encode(EpochEnded(rank.state_dict(), self._metrics.drain())), ()
        except BaseException as error:  # also of a batch that cannot be pickled, and of a hook that calls sys.exit
            self._fail(error)
            return
        else:
            self._room -= 1
        self._channel.send(data, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _encoded(self, batch: Any, state: Callable[[], State]) -> tuple[bytes, tuple[int, ...]]:
        """Returns the message with a batch, and the descriptors that go with it, to be closed behind it."""
        packed = pack_batch(batch)
        pieces = self._device_arenas.store(packed.device_segments)
        self._metrics.count("decode_process.batches")
        self._metrics.count("decode_process.bytes", packed.size)
        values = (packed.contents, self._states.send(state()), self._metrics.drain())
        tails = [pickle.dumps(value, protocol=5) for value in values]
        begins = [packed.size]
        for tail in tails:
            begins.append(begins[-1] + len(tail))
        end = begins[-1]
        contents, state_extent, record = ((begin, len(tail)) for begin, tail in zip(begins, tails, strict=False))

        def write(target: memoryview) -> None:
            packed.write(target)
            target[packed.size : end] = b"".join(tails)

        dropped = self._device_arenas.take_dropped()
        if end < SMALL_BATCH_BYTES:
            payload = bytearray(end)
            write(memoryview(payload))
            sent = BatchSent(-1, 0, self._arenas.take_dropped(), contents, state_extent, record, pieces, dropped)
            return CODEC.encode(sent, payload), ()
        arena = self._arenas.take(end)
        write(arena.memory.data)
        descriptor = arena.release_descriptor()
        capacity = 0 if descriptor is None else arena.capacity
        sent = BatchSent(
            arena.number, capacity, self._arenas.take_dropped(), contents, state_extent, record, pieces, dropped
        )
        return CODEC.encode(sent), () if descriptor is None else (descriptor,)

    def _fail(self, error: BaseException) -> None:
        self._ended = self._failed = True
        self._channel.send(CODEC.encode(failed_stream(0, 0, error, self._metrics.drain())))
