"""The worker process: runs the part of the tree below the worker border, and sends blocks as the rank takes them."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_dali.datasets.step_entries import cursor_of
from energon_dali.datasets.trace import child_metrics
from energon_dali.errors import WorkerError
from energon_dali.loader.processes.messages import Credits, Message, StartStream, StateSender, decode
from energon_dali.loader.processes.serialization import serialize
from energon_dali.loader.processes.server import BlockServer, ReportingTask, seed_generators
from energon_dali.loader.processes.work_board import WorkReporter
from energon_dali.plan.rng import mix
from energon_dali.shards.documents.state_entries import plain
from energon_dali.shards.storage.local import allow_many_files
from energon_dali.worker_config import IdleCores, cores_per_rank

if TYPE_CHECKING:
    from energon_dali.datasets.worker_border import BlockIterator, WorkerBorder
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.processes.shared_memory import Channel
    from energon_dali.loader.processes.work_board import WorkBoard


@dataclass(slots=True, eq=False)
class WorkerTask(ReportingTask):
    """What a worker runs."""

    borders: list[WorkerBorder]
    """The worker borders by number, each with everything below it."""
    rank: int
    """Rank it works for."""
    worker: int
    """Its number inside the rank."""
    seed_offset: int
    """The job's."""
    spare_arenas: int
    """Free arenas that it keeps."""
    options: LoaderOptions
    """The loader's."""

    @property
    def process_name(self) -> str:
        return f"worker {self.worker}"

    @property
    def board_region(self) -> int:
        return 1 + self.worker

    def prepare(self) -> None:
        """Seeds the global generators, allows as many open files as the system does, and leaves the cores to the other
        workers if torch is loaded already. Decoders may use this worker's share of the cores for its first block.
        """
        IdleCores.count = max(1, cores_per_rank() // max(1, self.borders[0].worker_config.num_workers))
        seed_generators(self.seed_offset, self.rank, self.worker)
        allow_many_files()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)

    def serve(self, channel: Channel) -> None:
        """Serves blocks until the rank hangs up, and removes the cache's files.

        Raises:
            EOFError: The rank hung up.
            ConnectionError: The rank hung up while a block was being sent.
        """
        from energon_dali.shards.storage.store import read_scope

        assert self.board is not None
        self.board.close_file()
        server = WorkerServer(channel, self, self.board)
        cache_pool = self.options.cache_pool
        try:
            with read_scope(self.options.read_scope(server.metrics.count)):
                server.serve()
        finally:
            if cache_pool is not None:
                cache_pool.close()


class _Stream:
    """A stream in its worker."""

    __slots__ = ("credits", "ended", "generation", "iterator", "produced", "states")

    def __init__(self, iterator: BlockIterator, generation: int, credits: int) -> None:
        self.iterator = iterator
        self.generation = generation
        self.credits = credits
        self.produced = 0
        self.states = StateSender()
        self.ended = False


class WorkerServer(BlockServer):
    """Serves the streams of a worker: makes a block if the rank has room for one, the most urgent first.

    Args:
        channel: Connection to the rank.
        task: What to run.
        board: Where it reports what it works on.
    """

    block_counter = "blocks"
    byte_counter = "blocks.bytes"

    def __init__(self, channel: Channel, task: WorkerTask, board: WorkBoard) -> None:
        metrics = child_metrics(task.borders[0].worker_config, task.process_name, 2 + task.worker)
        super().__init__(channel, task.spare_arenas, metrics, WorkReporter(board, task.board_region, metrics))
        config = task.borders[0].worker_config
        self._starting = metrics.clock("start")
        self._working = metrics.clock("worker")
        self._task = task
        self._num_streams = config.layout.num_streams
        self._streams: dict[int, _Stream] = {}
        self._origin = 0
        """A hash of the states at which streams started here; 0 if none was given."""

    def serve(self) -> None:
        """Runs until the rank hangs up.

        Raises:
            EOFError: The rank hung up.
            ConnectionError: The rank hung up while a block was being sent.
        """
        self.reporter.start()
        try:
            while True:
                self._serve_next()
        finally:
            self.reporter.write()

    def _serve_next(self) -> None:
        """Handles the next message, or makes a block."""
        stream = self._most_urgent()
        received = self._receive(wait=stream is None)
        working = self._working if self._streams else self._starting
        outer = working.begin()
        try:
            if received is not None:
                self._handle(decode(received[0])[0])
            elif stream is not None:
                self._produce(stream)
        finally:
            working.end(outer)

    def _most_urgent(self) -> int | None:
        """Returns the stream with room whose next block the rank needs first: elements are delivered round robin."""
        best: tuple[int, int] | None = None
        for number, stream in self._streams.items():
            if stream.credits and not stream.ended and (best is None or (stream.produced, number) < best):
                best = (stream.produced, number)
        return None if best is None else best[1]

    def _handle(self, message: Message) -> None:
        if isinstance(message, StartStream):
            self._start(message)
        elif isinstance(message, Credits):
            for number, credits in message.blocks.items():
                if number in self._streams:
                    self._streams[number].credits += credits
            for number in message.next_epoch:
                if number in self._streams:
                    self._streams[number].ended = False
            self._take_credits(message)

    def _start(self, message: StartStream) -> None:
        from energon_dali.datasets.stream import StreamContext

        self._stop(message.stream)
        try:
            self._seed_for(message)
            number, stream = divmod(message.stream, self._num_streams)
            fresh = self._task.options.start_method != "fork"
            context = StreamContext(stream, self.metrics, in_worker=True, fresh_process=fresh)
            border, state = self._task.borders[number], message.state
            if state is not None and border.global_batches is not None:
                border, state = border.continued(cursor_of(state), border.worker_config), None
            iterator = border.open_blocks(context)
            iterator.load_state_dict(state)
        except BaseException as error:
            self._send_failure(message.stream, message.generation, error)
            return
        self._streams[message.stream] = _Stream(iterator, message.generation, message.credits)

    def _seed_for(self, start: StartStream) -> None:
        """Seeds the global generators again for a stream that continues: hooks must not draw what they drew before."""
        if start.state is None:
            return
        state = zlib.crc32(json.dumps(plain(start.state), default=str, skipkeys=True).encode())
        self._origin = mix(self._origin, start.stream, state)
        task = self._task
        seed_generators(task.seed_offset, task.rank, task.worker, self._origin)

    def _stop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.iterator.close()

    def _produce(self, number: int) -> None:
        stream = self._streams[number]
        self._report.begin_block()
        try:
            block = stream.iterator.next_block()
            IdleCores.count = 1
            stream.credits -= 1
            stream.produced += 1
            stream.ended = block.end_state is not None
            # Inside the try: an element that cannot be pickled ends its stream with the reason.
            serialized = serialize((block.elements, stream.states.send((block.states, block.end_state)), block.keys))
        except BaseException as error:  # also a hook that calls sys.exit
            self._streams.pop(number)
            self._send_failure(number, stream.generation, error)
            return
        try:
            self._send_block(number, stream.generation, serialized)
        except WorkerError as error:  # there is no memory for it
            self._streams.pop(number)
            self._send_failure(number, stream.generation, error)
