"""Decodes the media of whole blocks, ahead of the consumer, and gives their samples one by one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from energon_dali.datasets.base import State, StreamContext, StreamIterator, WrapperDataset
from energon_dali.datasets.hand_over import Block, BlockIterator, HandOverDataset
from energon_dali.datasets.hook_guard import DEFAULT_FAILURE_TOLERANCE, HookGuard
from energon_dali.datasets.restore_key import Key, get_restore_key
from energon_dali.decode import DecodeFailure, Decoder, MediaHandle
from energon_dali.decode.interface import Outcome, map_handles
from energon_dali.errors import DecodeError

BLOCKS_AHEAD = 1
"""Blocks per stream that are being decoded while the block before them is consumed."""


class DecodeDataset(WrapperDataset[Any]):
    """Gives the elements of a hand-over, with their media handles replaced by decoded media.

    Without a decoder the elements are given as they are: finished batches, or samples whose media a later stage
    decodes. A sample with a part that no decoder can read is dropped, counted and named; its neighbours stay.

    Args:
        dataset: The hand-over.
        decoder: Decodes blocks of handles, or None.
        failure_tolerance: Consecutive samples that cannot be decoded after which the run ends.
    """

    dataset: HandOverDataset

    def __init__(
        self, dataset: HandOverDataset, decoder: Decoder | None, *, failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE
    ) -> None:
        super().__init__(dataset)
        self.decoder = decoder
        self.failure_tolerance = failure_tolerance

    @property
    def runs_in_rank(self) -> bool:  # type: ignore[override]
        """Whether there is something to decode."""
        return self.decoder is not None

    def describe(self) -> str:
        return f"DecodeDataset({type(self.decoder).__name__})" if self.decoder else "DeliverDataset"

    def config(self) -> dict[str, Any]:
        """Returns the config of the dataset below: what comes when does not depend on where media are decoded."""
        return self.dataset.config()

    def inner_config(self) -> dict[str, Any]:
        """Returns the config of the dataset below."""
        return self.dataset.inner_config()

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _DecodeIterator(self, context)

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        """Returns the element of a key, made anew and decoded.

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


def handles_of(element: Any) -> list[MediaHandle]:
    """Returns the media handles inside an element, each once, in a fixed order."""
    found: dict[int, MediaHandle] = {}

    def note(handle: MediaHandle) -> MediaHandle:
        found.setdefault(id(handle), handle)
        return handle

    map_handles(element, note)
    return list(found.values())


def put_outcomes(element: Any, outcomes: list[Outcome]) -> tuple[Any, DecodeFailure | None]:
    """Puts decoded media in place of an element's handles; returns (the element, the first failure if there is one)."""
    failure = next((outcome for outcome in outcomes if isinstance(outcome, DecodeFailure)), None)
    if failure is not None:
        return element, failure
    values = iter(outcomes)
    decoded: dict[int, Any] = {}

    def value_of(handle: MediaHandle) -> Any:
        # A handle that stands in two fields, or in a Lazy that does, has one outcome.
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


@dataclass(slots=True, eq=False)
class _Running:
    """A block whose media are being decoded."""

    block: Block
    handle_counts: list[int]
    future: Future[list[Outcome]] | None


class _DecodeIterator(StreamIterator[Any]):
    """Its state is that of the dataset below, so that a state does not tell where media are decoded."""

    def __init__(self, dataset: DecodeDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._stream = context.stream
        self._blocks: BlockIterator = dataset.dataset.open_blocks(context)
        self._decoder = dataset.decoder
        self._blocks_ahead = BLOCKS_AHEAD if dataset.decoder is not None else 0
        self._guard = HookGuard("decode", dataset.failure_tolerance, context, dataset.worker_config)
        self._recorder = context.recorder
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
            place = self._next
            self._next += 1
            element, block.elements[place] = block.elements[place], None
            self._state = block.states[place]
            self._key = block.keys.get(place)
            count = self._handle_counts[place] if self._handle_counts else 0
            if not count:
                return element
            outcomes = self._outcomes[self._next_outcome : self._next_outcome + count]
            self._next_outcome += count
            element, failure = put_outcomes(element, outcomes)
            if failure is None:
                self._guard.succeeded()
                return element
            self._guard.failed(DecodeError(failure.reason, failure.format, failure.route), element)

    def _advance(self) -> None:
        """Makes the next block current, after starting to decode the one behind it if it is already there."""
        if not self._ahead:
            self._ahead.append(self._start(self._blocks.next_block()))
        while (
            len(self._ahead) <= self._blocks_ahead and self._ahead[-1].block.end_state is None and self._blocks.ready()
        ):
            self._ahead.append(self._start(self._blocks.next_block()))
        running = self._ahead.popleft()
        start = time.perf_counter()
        self._outcomes = running.future.result() if running.future is not None else []
        self._recorder.spend("wait for decode", time.perf_counter() - start)
        for outcome in self._outcomes:
            self._recorder.count("route.failed" if isinstance(outcome, DecodeFailure) else f"route.{outcome.route}")
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
        return _Running(block, counts, self._decoder.start_block(handles) if handles else None)

    def last_key(self, element: Any) -> Key:
        return get_restore_key(element) if self._key is None else self._key

    def state_dict(self) -> State:
        if self._state is None:  # nothing was taken yet; the part below may run in another process
            return self._dataset.dataset.first_state(self._stream)
        return self._state

    def load_state_dict(self, state: State) -> None:
        self._state = state
        self._blocks.load_state_dict(state)

    def close(self) -> None:
        for running in self._ahead:
            if running.future is not None:
                running.future.cancel()
        self._ahead.clear()
        self._block = None
        self._blocks.close()
