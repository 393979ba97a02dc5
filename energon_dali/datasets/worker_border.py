"""The border between the processes that read and the one that trains: blocks of elements cross it and are decoded."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.stream import Block, BlockSource, Planned, State, StreamContext, StreamIterator
from energon_dali.decode import DecodeFailure, Decoder, MediaHandle
from energon_dali.decode.interface import Outcome, map_handles
from energon_dali.errors import DecodeError
from energon_dali.samples.base import Key, get_restore_key
from energon_dali.shards.documents.state_entries import plain, restore_stream
from energon_dali.task_encoder.context import running_stream
from energon_dali.task_encoder.stateless import restores_seeds
from energon_dali.worker_config import WorkerConfig

BLOCKS_AHEAD = 1
"""Blocks per stream that are being decoded while the block before them is consumed."""


class DecodeDataset(PassThroughDataset[Any]):
    """Yields the elements of the dataset below with their media handles decoded, where that dataset runs.

    Decoding works on blocks. A sample with a part that the decoder cannot read is dropped, counted and named; its
    neighbours stay.

    Args:
        dataset: Yields samples with handles.
        decoder: Decodes blocks of handles. None yields the elements as they are.
        block_size: Elements per block, at least 1.
        failure_tolerance: Consecutive samples that cannot be decoded after which the run ends.
    """

    plan_obstacle = None  # one that cannot be decoded is dropped; `plan_steps` says so of all trees
    shown_in_config = False  # what comes when does not depend on where media are decoded

    def __init__(
        self,
        dataset: SavableDataset[Any],
        decoder: Decoder | None,
        *,
        block_size: int = 1,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
    ) -> None:
        super().__init__(dataset)
        self.decoder = decoder
        self.block_size = block_size
        self.failure_tolerance = failure_tolerance

    blocks_ahead = 0
    """Blocks per stream that are being decoded while the block before them is consumed."""

    def describe(self) -> str:
        decoder = f", decoder={type(self.decoder).__name__}" if self.decoder else ""
        return f"{type(self).__name__}(block_size={self.block_size}{decoder})"

    def first_state(self, stream: int) -> State:
        """Returns the state of the dataset below before its first element.

        Args:
            stream: Number of the stream.
        """
        # Not closed: that would close the readers, which all streams share.
        return self.dataset.open(StreamContext(stream)).state_dict()

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _DecodeIterator(self, context)

    def open_blocks(self, context: StreamContext) -> BlockIterator:
        """Returns an iterator over blocks of one stream, before they are decoded."""
        return _LocalBlocks(self.dataset.open(context), context.stream, self.block_size, self.worker_config)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key, made again and decoded.

        Raises:
            DecodeError: A part cannot be decoded.
        """
        element = self.dataset.restore_sample(restore_key)
        return element if self.decoder is None else decode_elements(self.decoder, [element], strict=True)[0]

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        elements = self.dataset.restore_samples(keys)
        if self.decoder is None:
            return elements
        made = decode_elements(self.decoder, [element for element in elements if not isinstance(element, Exception)])
        decoded = iter(made)
        return [element if isinstance(element, Exception) else next(decoded) for element in elements]


class WorkerBorder(DecodeDataset):
    """Yields the elements of the part of the tree that workers run, with their media handles decoded.

    With `context.blocks` the part below runs elsewhere. Without it, it runs in this process, and if there is something
    to decode it forms blocks all the same, so that decoding works on blocks in both cases.

    Args:
        dataset: What the workers run.
        decoder: Decodes blocks of handles in the rank's process. None yields the elements as they are: finished
            batches, or samples whose media a later stage decodes.
        block_size: Elements per block, at least 1.
        number: Number of this border among those of the tree.
        failure_tolerance: Consecutive samples that cannot be decoded after which the run ends.
    """

    keeps_steps = True

    def __init__(
        self,
        dataset: SavableDataset[Any],
        decoder: Decoder | None = None,
        *,
        block_size: int,
        number: int = 0,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
    ) -> None:
        super().__init__(dataset, decoder, block_size=block_size, failure_tolerance=failure_tolerance)
        self.number = number

    @property
    def runs_in_rank(self) -> bool:  # type: ignore[override]
        """Whether there is something to decode."""
        return self.decoder is not None

    @property
    def blocks_ahead(self) -> int:  # type: ignore[override]
        """Blocks per stream that are being decoded while the block before them is consumed."""
        return 0 if self.decoder is None else BLOCKS_AHEAD

    def numbered(self, dataset: SavableDataset[Any], number: int) -> WorkerBorder:
        """Returns a copy around another dataset, with the number that it has in its tree."""
        twin = copy.copy(self)
        twin.dataset, twin.number = dataset, number
        return twin

    def block_stream(self, stream: int) -> int:
        """Returns the number that a stream of this border has in a source of blocks.

        Args:
            stream: Number of the stream, the same for all borders of a tree.
        """
        return self.number * self.worker_config.layout.num_streams + stream

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        if self.decoder is None and context.blocks is None:
            return self.dataset.open(context)  # nothing to decode, and no border to cross
        return super().open(context)

    def open_blocks(self, context: StreamContext) -> BlockIterator:
        if context.blocks is not None:
            return _RemoteBlocks(context.blocks, self.block_stream(context.stream))
        return super().open_blocks(context)


def find_worker_borders(dataset: SavableDataset[Any]) -> list[WorkerBorder]:
    """Returns the worker borders of a tree, in order; not those below another one."""
    if isinstance(dataset, WorkerBorder):
        return [dataset]
    return [found for child in dataset.children for found in find_worker_borders(child)]


def rank_seeds_generators(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a hook that the rank runs seeds the global generators of random numbers."""
    if isinstance(dataset, WorkerBorder) and dataset.worker_config.num_workers > 0:
        return False
    hooks = (getattr(dataset, name, None) for name in ("hook", "map_fn", "sample_encoder"))
    return any(hook is not None and restores_seeds(hook) for hook in hooks) or any(
        map(rank_seeds_generators, dataset.children)
    )


class BlockIterator(Protocol):
    """Yields the blocks of one stream, in order, from a state."""

    def next_block(self) -> Block:
        """Returns the next block; one with an end_state ends an epoch, and the next epoch follows."""

    def ready(self) -> bool:
        """Returns whether `next_block` would return without waiting for another process."""

    def load_state_dict(self, state: State | None) -> None:
        """Starts at a state; None is the beginning. Called at most once, before the first block."""

    def close(self) -> None:
        """Ends the stream."""


class _LocalBlocks:
    """Forms blocks from an iterator: in the worker, and in the rank where there are no workers."""

    def __init__(
        self, iterator: StreamIterator[Any], stream: int, block_size: int, worker_config: WorkerConfig
    ) -> None:
        self._worker_config = worker_config
        self._iterator = iterator
        self._stream = stream
        self._block_size = block_size

    def load_state_dict(self, state: State | None) -> None:
        if state is not None:
            restore_stream(self._iterator, state, self._stream)

    def next_block(self) -> Block:
        with running_stream(self._worker_config, self._stream):
            return self._next_block()

    def _next_block(self) -> Block:
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


class _RemoteBlocks:
    """Blocks that other processes deliver."""

    def __init__(self, blocks: BlockSource, stream: int) -> None:
        self._blocks = blocks
        self._stream = stream
        self._started = False

    def load_state_dict(self, state: State | None) -> None:
        self._started = True
        self._blocks.start(self._stream, state)

    def next_block(self) -> Block:
        if not self._started:
            self.load_state_dict(None)
        return self._blocks.next_block(self._stream)

    def ready(self) -> bool:
        return self._started and self._blocks.ready(self._stream)

    def close(self) -> None:
        pass


@dataclass(slots=True, eq=False)
class _Running:
    """A block whose media are being decoded."""

    block: Block
    handle_counts: list[int]
    future: Future[list[Outcome]] | None


class _DecodeIterator(StreamIterator[Any]):
    """Its state is that of the dataset below, so that a state does not depend on where media are decoded."""

    def __init__(self, dataset: DecodeDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._stream = context.stream
        self._context = context
        self._blocks: BlockIterator = dataset.open_blocks(context)
        self._decoder = dataset.decoder
        self._blocks_ahead = dataset.blocks_ahead
        self._policy = FailurePolicy("decode", dataset.failure_tolerance, context, dataset.worker_config)
        self._metrics = context.metrics
        self._clock = context.metrics.clock("wait for decode")
        self._ahead: deque[_Running] = deque()
        self._block: Block | None = None
        self._outcomes: list[Outcome] = []
        self._handle_counts: list[int] = []
        self._next = 0
        self._next_outcome = 0
        self._state: State | None = None
        self._key: Key | None = None

    def __next__(self) -> Any:
        while True:
            block = self._block
            if block is None or self._next == len(block.elements):
                if block is not None and block.end_state is not None:
                    self._state, self._block = block.end_state, None
                    raise StopIteration
                self._advance()
                continue
            index = self._next
            self._next += 1
            element, block.elements[index] = block.elements[index], None
            self._state = block.states[index]
            self._key = block.keys.get(index)
            count = self._handle_counts[index] if self._handle_counts else 0
            if not count:
                return element
            outcomes = self._outcomes[self._next_outcome : self._next_outcome + count]
            self._next_outcome += count
            element, failure = put_outcomes(element, outcomes)
            if failure is None:
                self._policy.on_success()
                return element
            self._policy.on_failure(DecodeError(failure.reason, failure.format, failure.route), element)

    def _advance(self) -> None:
        """Makes the next block current, after it starts to decode the one that follows, if that is already there."""
        if not self._ahead:
            self._ahead.append(self._start(self._blocks.next_block()))
        while (
            len(self._ahead) <= self._blocks_ahead and self._ahead[-1].block.end_state is None and self._blocks.ready()
        ):
            self._ahead.append(self._start(self._blocks.next_block()))
        running = self._ahead.popleft()
        outer = self._clock.begin()
        try:
            self._outcomes = running.future.result() if running.future is not None else []
        finally:
            self._clock.end(outer)
        count_routes(self._metrics, self._outcomes)
        self._block, self._handle_counts = running.block, running.handle_counts
        self._next = self._next_outcome = 0

    def _start(self, block: Block) -> _Running:
        if self._decoder is None:
            return _Running(block, [], None)
        handles: list[MediaHandle] = []
        counts = []
        for element in block.elements:
            before = len(handles)
            handles += handles_of(element)
            counts.append(len(handles) - before)
        if not handles:
            return _Running(block, counts, None)
        future = self._decoder.start_block(handles)
        self._metrics.watch("decode", future, len(handles))
        return _Running(block, counts, future)

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        # The part below moves, from after the last element that was taken. Blocks that were made are forgotten.
        inner = self._dataset.dataset.open(replace(self._context, blocks=None))
        if self._state is not None:
            restore_stream(inner, self._state, self._stream)
        skipped = inner.skip(count, planned)
        self._state = inner.state_dict()
        self._drop_blocks()
        if self._context.blocks is None:
            self._blocks = _LocalBlocks(inner, self._stream, self._dataset.block_size, self._dataset.worker_config)
        else:
            inner.close()  # it is only a position: the stream goes on where it runs
            self._blocks.load_state_dict(plain(self._state))
        return skipped

    def last_key(self, element: Any) -> Key:
        return get_restore_key(element) if self._key is None else self._key

    def state_dict(self) -> State:
        if self._state is None:  # nothing was taken yet, and the part below may run in another process
            return self._dataset.first_state(self._stream)
        return self._state

    def load_state_dict(self, state: State) -> None:
        self._state = state
        self._blocks.load_state_dict(state)

    def _drop_blocks(self) -> None:
        for running in self._ahead:
            if running.future is not None:
                running.future.cancel()
        self._ahead.clear()
        self._block = None

    def close(self) -> None:
        self._drop_blocks()
        self._blocks.close()


def handles_of(element: Any) -> list[MediaHandle]:
    """Returns the media handles inside an element, each once, in a fixed order."""
    found: dict[int, MediaHandle] = {}

    def note(handle: MediaHandle) -> MediaHandle:
        found.setdefault(id(handle), handle)
        return handle

    map_handles(element, note)
    return list(found.values())


def count_routes(metrics: Metrics, outcomes: Sequence[Outcome]) -> None:
    """Counts decoded media by the decoder that made them.

    Args:
        metrics: Takes the counts.
        outcomes: What a decoder returned.
    """
    for outcome in outcomes:
        metrics.count("route.failed" if isinstance(outcome, DecodeFailure) else f"route.{outcome.route}")


def put_outcomes(element: Any, outcomes: list[Outcome]) -> tuple[Any, DecodeFailure | None]:
    """Puts decoded media in place of an element's handles; returns (the element, the first failure if there is one)."""
    failure = next((outcome for outcome in outcomes if isinstance(outcome, DecodeFailure)), None)
    if failure is not None:
        return element, failure
    values = iter(outcomes)
    decoded: dict[int, Any] = {}

    def value_of(handle: MediaHandle) -> Any:
        # A handle that is in two fields, or in a Lazy that is, has one outcome.
        if id(handle) not in decoded:
            decoded[id(handle)] = next(values).value  # type: ignore[union-attr]
        return decoded[id(handle)]

    return map_handles(element, value_of), None


def decode_elements(decoder: Decoder, elements: list[Any], *, strict: bool = False) -> list[Any]:
    """Returns the elements with their media decoded, all in one block; failed ones are DecodeError objects.

    Args:
        decoder: Decodes the handles.
        elements: Samples that hold handles.
        strict: Raise instead.

    Raises:
        DecodeError: With strict, a part cannot be decoded.
    """
    handles = [handles_of(element) for element in elements]
    outcomes = iter(decoder.decode_block([handle for group in handles for handle in group]))
    results: list[Any] = []
    for element, group in zip(elements, handles, strict=True):
        changed, failure = put_outcomes(element, [next(outcomes) for _ in group])
        if failure is not None:
            error = DecodeError(failure.reason, failure.format, failure.route)
            if strict:
                raise error
            results.append(error)
        else:
            results.append(changed)
    return results
