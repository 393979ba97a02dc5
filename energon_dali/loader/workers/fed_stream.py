"""One stream as the rank receives it: blocks that wait to be taken, or the error that ended it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from energon_dali.loader.state_transfer import StateReceiver
from energon_dali.loader.workers.failure import rebuild_error
from energon_dali.loader.workers.transport import unpack

if TYPE_CHECKING:
    from energon_dali.datasets.stream import Block
    from energon_dali.loader.workers.arena import ArenaViews
    from energon_dali.loader.workers.messages import BlockSent, StreamFailed


class FedStream:
    """What the rank knows of a stream that a worker runs.

    Args:
        stream: Its number.
        generation: How often it was started before.
        fresh: Whether it starts at its beginning.
    """

    __slots__ = ("_fresh", "_states", "_taken", "blocks", "error", "generation", "paused", "stream")

    def __init__(self, stream: int, generation: int, *, fresh: bool) -> None:
        self.stream = stream
        self.generation = generation
        self.blocks: deque[tuple[BlockSent, memoryview]] = deque()
        self.error: Exception | None = None
        self.paused = False
        """The block taken last ended an epoch: the worker waits to be asked for the next."""
        self._fresh = fresh
        self._taken = False
        self._states = StateReceiver()

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
        from energon_dali.datasets.stream import Block

        message, payload = self.blocks.popleft()
        self._taken = True
        source = payload if message.arena < 0 else views.view(message.arena)
        elements, sent, keys = unpack(source, message.extents)
        states, end_state = self._states.take(sent)
        self.paused = end_state is not None
        return Block(self.stream, elements, states, keys, end_state)

    def fail(self, message: StreamFailed, worker: int) -> None:
        """Notes the exception that ended the stream; blocks from before it are still delivered."""
        if message.generation == self.generation:
            self.error = rebuild_error(message, f"worker {worker}, stream {message.stream}")

    def discard(self) -> list[int]:
        """Forgets the blocks that were not taken; returns the arenas they lie in."""
        arenas = [message.arena for message, _ in self.blocks if message.arena >= 0]
        self.blocks.clear()
        return arenas
