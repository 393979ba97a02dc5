"""The decode process: runs the rank's pipeline, hooks included, and sends batches as the trainer takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.trace import child_metrics
from energon_dali.errors import WorkerError
from energon_dali.loader.processes.messages import Credits, EpochEnded, FinalStats, decode, encode
from energon_dali.loader.processes.serialization import serialize
from energon_dali.loader.processes.server import BlockServer, ProcessTask, seed_generators
from energon_dali.loader.processes.signals import forward_stack_requests

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.processes.channel import Channel
    from energon_dali.loader.rank_pipeline import RankPipeline
    from energon_dali.loader.workers.pool import WorkerPool

STREAM = 0
"""The number under which batches are sent."""


@dataclass(slots=True, eq=False)
class DecodeTask(ProcessTask):
    """What a decode process runs."""

    dataset: SavableDataset[Any]
    """The tree, with its worker borders."""
    state: State | None
    """Where to start; None is the beginning."""
    options: LoaderOptions
    """The loader's."""
    device: int | None
    """The trainer's GPU; None if it does not use one yet."""

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
        DecodeServer(channel, self).serve()


class DecodeServer(BlockServer):
    """Makes batches where the trainer has room for them.

    Args:
        channel: Connection to the trainer.
        task: What to run.
    """

    block_counter = "decode_process.batches"
    byte_counter = "decode_process.bytes"

    def __init__(self, channel: Channel, task: DecodeTask) -> None:
        from energon_dali.loader.decode_process.device_memory import DeviceArenaStore
        from energon_dali.loader.processes.messages import StateSender

        # One arena per credit, one in the trainer's hands, and one for the batch that is being made.
        spare_arenas = task.options.prefetch_factor + 2
        super().__init__(channel, spare_arenas, child_metrics(task.dataset.worker_config, "decode process", 1))
        self._task = task
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
            while self._receive_credits(wait=not self._room or self._ended):
                if self._room and not self._ended:
                    self._produce()
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
        options = task.options.for_decode_process()
        try:
            self._pipeline = RankPipeline(task.dataset, self.metrics, options, task.state, on_pool=prepare_pool)
        except Exception as error:
            self._fail(error)

    def _receive_credits(self, *, wait: bool) -> bool:
        """Handles all messages of the trainer that have arrived; returns False if it wants to stop."""
        while (received := self._channel.receive(wait=wait)) is not None:
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
