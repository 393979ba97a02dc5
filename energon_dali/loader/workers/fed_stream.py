"""One stream as the rank receives it: blocks that wait to be taken, or the error that ended it."""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING

from energon_dali.errors import WorkerError
from energon_dali.loader.workers.transport import unpack

if TYPE_CHECKING:
    from energon_dali.datasets.hand_over import Block
    from energon_dali.loader.workers.arena import ArenaViews
    from energon_dali.loader.workers.messages import BlockSent, StreamFailed


class WorkerTraceback(Exception):  # noqa: N818 - it is no error, it shows where one came from
    """The cause of an exception that came from a worker: the traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class FedStream:
    """What the rank knows of a stream that a worker runs.

    Args:
        stream: Its number.
        generation: How often it was started before.
        fresh: Whether it starts at its beginning.
    """

    __slots__ = ("_fresh", "_taken", "blocks", "error", "generation", "paused", "stream")

    def __init__(self, stream: int, generation: int, *, fresh: bool) -> None:
        self.stream = stream
        self.generation = generation
        self.blocks: deque[tuple[BlockSent, memoryview]] = deque()
        self.error: Exception | None = None
        self.paused = False
        """The block taken last ended an epoch: the worker waits to be asked for the next."""
        self._fresh = fresh
        self._taken = False

    @property
    def untouched(self) -> bool:
        """Whether it started at its beginning and no block was taken."""
        return self._fresh and not self._taken

    def accept(self, message: BlockSent, payload: memoryview) -> bool:
        """Queues a block; returns False for one of an earlier start, which nobody wants any more."""
        if message.generation != self.generation:
            return False
        self.blocks.append((message, payload))
        return True

    def take(self, views: ArenaViews) -> Block:
        """Returns the first block; its large buffers are views of the worker's arena."""
        from energon_dali.datasets.hand_over import Block

        message, payload = self.blocks.popleft()
        self._taken = True
        source = payload if message.arena < 0 else views.view(message.arena)
        elements, states, keys, end_state = unpack(source, message.extents)
        self.paused = end_state is not None
        return Block(self.stream, elements, states, keys, end_state)

    def fail(self, message: StreamFailed, worker: int) -> None:
        """Notes the exception that ended the stream; blocks from before it are still delivered."""
        if message.generation == self.generation:
            self.error = _with_traceback(_rebuilt(message, worker), message, worker)

    def discard(self) -> list[int]:
        """Forgets the blocks that were not taken; returns the arenas they lie in."""
        arenas = [message.arena for message, _ in self.blocks if message.arena >= 0]
        self.blocks.clear()
        return arenas


def task_error(message: StreamFailed, worker: int) -> WorkerError:
    """Returns the error of a worker that could not rebuild the dataset."""
    error = WorkerError(
        f"Worker {worker} could not rebuild the dataset: {message.summary}. What the dataset holds must be importable "
        "in a new process, or be defined in the script itself."
    )
    _with_traceback(error, message, worker)
    return error


def _with_traceback(error: Exception, message: StreamFailed, worker: int) -> Exception:
    error.__cause__ = WorkerTraceback(f"In worker {worker}, stream {message.stream}:\n{message.traceback}")
    return error


def _rebuilt(message: StreamFailed, worker: int) -> Exception:
    if message.exception is not None:
        try:
            error = pickle.loads(message.exception)
        except Exception:
            error = None
        if isinstance(error, Exception):
            return error
    return WorkerError(
        f"Worker {worker} failed with an exception that cannot travel between processes: {message.summary}. Give it "
        "attributes that can be pickled to see it as what it is."
    )
