"""The cut between the process that reads and the process that trains, and what crosses it: blocks of elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from energon_dali.datasets.base import (
    SavableDataset,
    State,
    StreamContext,
    StreamIterator,
    WrapperDataset,
    restore_stream,
)
from energon_dali.datasets.restore_key import Key, get_restore_key


@dataclass(slots=True, eq=False)
class Block:
    """A run of consecutive elements of one stream, with the state of the stream after each of them."""

    stream: int
    """The stream they belong to, as the feed knows it."""
    elements: list[Any] = field(default_factory=list)
    """Samples with media handles, or finished batches."""
    states: list[State] = field(default_factory=list)
    """State of the part before the hand-over after each element; as many as elements."""
    keys: dict[int, Key] = field(default_factory=dict)
    """By place, the restore keys of those elements that have no place for one themselves."""
    end_state: State | None = None
    """Set where the stream's epoch ends behind the last element: the state from which the next epoch starts."""


class BlockFeed(Protocol):
    """Delivers blocks of streams that are run elsewhere; streams have the numbers of `HandOverDataset.feed_stream`."""

    def start(self, stream: int, state: State | None) -> None:
        """Starts a stream at a state, or at its beginning; returns at once."""

    def next_block(self, stream: int) -> Block:
        """Returns the next block of a stream, in order; waits for it. After a block with an end_state the next epoch
        follows.

        Raises:
            WorkerError: The process that runs the stream is gone.
            Exception: Whatever error ended the stream there.
        """

    def ready(self, stream: int) -> bool:
        """Returns whether `next_block` would return without waiting for the process that runs the stream."""


class HandOverDataset(WrapperDataset[Any]):
    """Hands blocks of elements from the part of the tree that workers run to the part that the rank runs.

    With `context.feed` the part below runs elsewhere; without, it runs here, and blocks are formed all the same, so
    that decoding works on blocks in both cases.

    Args:
        dataset: What the workers run.
        block_size: Elements per block, at least 1.
        number: Tells the hand-overs of one tree apart.
    """

    def __init__(self, dataset: SavableDataset[Any], *, block_size: int, number: int = 0) -> None:
        super().__init__(dataset)
        self.block_size = block_size
        self.number = number

    def feed_stream(self, stream: int) -> int:
        """Returns the number under which a feed knows a stream of this hand-over.

        Args:
            stream: Number of the stream, the same for all hand-overs of a tree.
        """
        return self.number * self.worker_config.layout.num_streams + stream

    def describe(self) -> str:
        return f"HandOverDataset(block_size={self.block_size})"

    def config(self) -> dict[str, Any]:
        """Returns the config of the dataset below, which is the same wherever it runs."""
        return self.dataset.config()

    def inner_config(self) -> dict[str, Any]:
        """Returns the config of the dataset below."""
        return self.dataset.inner_config()

    def first_state(self, stream: int) -> State:
        """Returns the state of the dataset below before its first element.

        Args:
            stream: Number of the stream.
        """
        # Not closed: that would close the readers, which all streams share.
        return self.dataset.open(StreamContext(stream)).state_dict()

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        raise TypeError("A hand-over is opened by what stands above it, with open_blocks().")

    def open_blocks(self, context: StreamContext) -> BlockIterator:
        """Returns an iterator over blocks of one stream."""
        if context.feed is not None:
            return _FedBlocks(context.feed, self.feed_stream(context.stream))
        return LocalBlocks(self.dataset.open(context), context.stream, self.block_size)

    def can_restore_sample(self) -> bool:
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        return self.dataset.restore_sample(restore_key)

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        return self.dataset.restore_samples(keys)


def find_hand_overs(dataset: SavableDataset[Any]) -> list[HandOverDataset]:
    """Returns the hand-overs of a tree, in order; those inside another are not looked for."""
    if isinstance(dataset, HandOverDataset):
        return [dataset]
    return [found for child in dataset.children for found in find_hand_overs(child)]


class BlockIterator(Protocol):
    """Gives the blocks of one stream, in order, from a state."""

    def next_block(self) -> Block:
        """Returns the next block; after one with an end_state the next epoch follows."""

    def ready(self) -> bool:
        """Returns whether the next block would come without waiting for another process."""

    def load_state_dict(self, state: State | None) -> None:
        """Starts at a state; None is the beginning. Called once, before the first block."""

    def close(self) -> None:
        """Ends the stream."""


class LocalBlocks:
    """Forms blocks from an iterator; used in the worker, and in the rank where there are no workers."""

    def __init__(self, iterator: StreamIterator[Any], stream: int, block_size: int) -> None:
        self._iterator = iterator
        self._stream = stream
        self._block_size = block_size

    def load_state_dict(self, state: State | None) -> None:
        if state is not None:
            restore_stream(self._iterator, state, self._stream)

    def next_block(self) -> Block:
        block = Block(self._stream)
        while len(block.elements) < self._block_size:
            try:
                element = next(self._iterator)
            except StopIteration:
                block.end_state = self._iterator.state_dict()
                break
            key = self._iterator.last_key(element)
            if key and get_restore_key(element) is not key:
                block.keys[len(block.elements)] = key
            block.elements.append(element)
            block.states.append(self._iterator.state_dict())
        return block

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        self._iterator.close()


class _FedBlocks:
    """Blocks that a feed delivers."""

    def __init__(self, feed: BlockFeed, stream: int) -> None:
        self._feed = feed
        self._stream = stream
        self._started = False

    def load_state_dict(self, state: State | None) -> None:
        self._started = True
        self._feed.start(self._stream, state)

    def next_block(self) -> Block:
        if not self._started:
            self.load_state_dict(None)
        return self._feed.next_block(self._stream)

    def ready(self) -> bool:
        return self._started and self._feed.ready(self._stream)

    def close(self) -> None:
        pass
