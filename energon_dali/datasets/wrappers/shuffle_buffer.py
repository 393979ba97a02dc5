"""Shuffles the elements of a dataset through a buffer."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.errors import ConfigError
from energon_dali.plan.rng import BUFFER, Int64Array, permutation, uniform
from energon_dali.samples.base import Key
from energon_dali.shards.documents.state_entries import checked_count, count_of, damaged, entry_of, state_of
from energon_dali.worker_config import WorkerConfig

_GROWTH, _ROUND, _REST = 0, 1, 2


class BufferOrder:
    """The draws from a buffer of `size` slots: what is drawn next, and what it holds, as functions of their number.

    Elements are numbered as they are read. A draw empties a slot, and the next element that is read fills it. While the
    buffer grows, a draw takes any slot, and one more element opens a new slot. After that, the draws visit the slots in
    rounds, each round in its own random order. So no element stays longer than two rounds, and the content of the
    buffer is known without replaying the draws.

    Args:
        size: Number of slots of the full buffer, at least 1.
        first: Number of elements that are read before the first draw, 1 <= first <= size.
        *key: Integers that identify the order.
    """

    def __init__(self, size: int, first: int, *key: int) -> None:
        self.size = size
        self.first = first
        self.growth = size - first
        """Number of draws during which the buffer grows."""
        self._key = key
        self._round: tuple[int, list[int]] = (-1, [])
        self._growth_slots: list[int] | None = None

    def slot(self, draw: int) -> int:
        """Returns which slot a draw empties.

        Args:
            draw: Number of the draw, at least 0.
        """
        if draw < self.growth:
            return self._grown()[draw]
        number, step = divmod(draw - self.growth, self.size)
        if self._round[0] != number:
            self._round = (number, self._slots(number).tolist())
        return self._round[1][step]

    def _grown(self) -> list[int]:
        if self._growth_slots is None:
            draws = uniform(0, self.growth, *self._key, _GROWTH)
            slots: Int64Array = (draws * (self.first + np.arange(self.growth))).astype(np.int64)
            self._growth_slots = slots.tolist()
        return self._growth_slots

    def _slots(self, number: int) -> Int64Array:
        """Returns the order in which a round empties the slots."""
        return permutation(self.size, *self._key, _ROUND, number)

    def num_read(self, draw: int) -> int:
        """Returns how many elements are read before a draw, if the data does not end."""
        return self.first + draw + min(draw, self.growth)

    def oldest(self, draw: int) -> int:
        """Returns a lower bound of the numbers of the elements that the buffer holds before a draw.

        It changes once per round, so that states have to be kept for few elements only.
        """
        rounds = (draw - self.growth) // self.size
        return 0 if rounds < 1 else self.num_read(self.growth + (rounds - 1) * self.size)

    def is_oldest(self, number: int) -> bool:
        """Returns whether `oldest` gives this number for some draw."""
        after = number - self.num_read(self.growth)
        return number == 0 or (after >= 0 and after % self.size == 0)

    def contents(self, draw: int) -> Int64Array:
        """Returns the number of the element in each slot before a draw, if the data does not end.

        Returns:
            int64[slots], all different.
        """
        grown = min(draw, self.growth)
        numbers = np.arange(self.first, dtype=np.int64).tolist()
        for step, slot in enumerate(self._grown()[:grown] if grown else []):
            numbers[slot] = self.first + 2 * step
            numbers.append(self.first + 2 * step + 1)
        held: Int64Array = np.array(numbers, np.int64)
        if draw > self.growth:
            number, step = divmod(draw - self.growth, self.size)
            for n, length in ((number - 1, self.size), (number, step)):
                if n >= 0:
                    begin = self.num_read(self.growth + n * self.size)
                    held[self._slots(n)[:length]] = np.arange(begin, begin + length)
        return held

    def rest(self, count: int) -> Int64Array:
        """Returns the order in which the last elements are drawn when the data has ended: a permutation.

        Args:
            count: How many there are.
        """
        return permutation(count, *self._key, _REST)


class ShuffleBufferDataset(PassThroughDataset[Any]):
    """Holds `size` elements of each stream and yields a random one of them for each element that it reads.

    For samples of a dataset folder use `get_train_dataset(shuffle_buffer_size=...)`, which shuffles numbers: it holds
    no samples, starts at once and restores without reading. This dataset is for elements that a hook made.

    The state holds neither elements nor their keys. It is a position, and a state of the data below from which a
    restore reads at most 2 * size elements again (3 * size while the buffer grows) before it yields the next one. That
    is exact for all datasets below.

    Args:
        dataset: The dataset below.
        size: Elements in the buffer, at least 1.
        first: Elements to read before the first one is yielded, 1 to `size`; the buffer then grows by one with each
            element until it is full. None waits for the full buffer. A small number starts sooner, with elements that
            are close together in the data.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: A number is out of range.
    """

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        size: int,
        *,
        first: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.size = check_count("size", size, "leave the dataset out for no shuffle")
        advice = f"give a number from 1 to size={size}, or None for the size"
        self.first = self.size if first is None else check_count("first", first, advice)
        if self.first > self.size:
            raise ConfigError(f"first={first} is invalid: {advice}.")

    def describe(self) -> str:
        return f"ShuffleBufferDataset(size={self.size})"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "size": self.size, "first": self.first}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BufferIterator(self, context)


class _BufferIterator(WrapperIterator[Any]):
    def __init__(self, dataset: ShuffleBufferDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._dataset = dataset
        self._order_key = (BUFFER, dataset.hook_seed, context.stream)
        self._saved: State | None = None
        self._key: Key = ()
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        """Empties the buffer before an epoch."""
        self._epoch = epoch
        self._order = BufferOrder(self._dataset.size, self._dataset.first, *self._order_key, epoch)
        self._draws = 0
        self._read = 0
        self._slots: list[tuple[Any, Key] | None] = []
        self._starts: dict[int, State] = {}
        """By number of the element, states of the data below from which a restore may read."""
        self._rest: deque[tuple[Any, Key]] | None = None
        """The elements that are left after the data has ended."""
        self._drained = 0

    def __next__(self) -> Any:
        if self._saved is not None:
            self._refill(self._saved)
            self._saved = None
        if self._rest is None and not self._slots:
            self._fill()
        if self._rest is None:
            element, self._key = self._draw()
            return element
        if not self._rest:
            self._begin(self._epoch + 1)
            raise StopIteration
        self._drained += 1
        element, self._key = self._rest.popleft()
        return element

    def _fill(self) -> None:
        while len(self._slots) < self._order.first:
            taken = self._take()
            if taken is None:
                self._end()
                return
            self._slots.append(taken)

    def _draw(self) -> tuple[Any, Key]:
        slot = self._order.slot(self._draws)
        drawn = self._slots[slot]
        assert drawn is not None
        grows = self._draws < self._order.growth
        self._draws += 1
        taken = self._slots[slot] = self._take()
        if grows and taken is not None:
            taken = self._take()
            self._slots.append(taken)
        if taken is None:
            self._end()
        return drawn

    def _take(self) -> tuple[Any, Key] | None:
        """Returns the next element of the data below and its key; None at its end."""
        if self._order.is_oldest(self._read):
            self._starts[self._read] = self._inner.state_dict()
            oldest = self._order.oldest(self._draws)
            self._starts = {number: state for number, state in self._starts.items() if number >= oldest}
        try:
            element = next(self._inner)
        except StopIteration:
            return None
        self._read += 1
        return element, self._inner.last_key(element)

    def _end(self) -> None:
        """Orders the elements that are left after the data has ended."""
        left = [held for held in self._slots if held is not None]
        self._rest = deque(left[index] for index in self._order.rest(len(left)).tolist())
        self._slots = []

    def last_key(self, element: Any) -> Key:
        return self._key

    def state_dict(self) -> State:
        if self._saved is not None:
            return self._saved
        oldest = self._order.oldest(self._draws)
        start = self._starts[oldest] if self._read or self._rest is not None else self._inner.state_dict()
        drained = None if self._rest is None else self._drained
        return {"epoch": self._epoch, "draws": self._draws, "drained": drained, "inner": start}

    def load_state_dict(self, state: State) -> None:
        # The buffer is filled when the first element is taken, so restoring costs nothing. A state that lacks an entry
        # is refused here.
        drained = entry_of(state, "drained")
        self._saved = {
            "epoch": count_of(state, "epoch"),
            "draws": count_of(state, "draws"),
            "drained": None if drained is None else checked_count(drained, "drained"),
            "inner": state_of(state),
        }
        self._inner.load_state_dict(self._saved["inner"])

    def _refill(self, state: State) -> None:
        self._begin(state["epoch"])
        ended = state["drained"] is not None
        if not state["draws"] and not ended:
            return  # at the beginning of an epoch
        self._draws = state["draws"]
        numbers = self._order.contents(self._draws).tolist()
        wanted, held = set(numbers), {}
        self._read = self._order.oldest(self._draws)
        most = self._order.num_read(self._draws)
        while ended or self._read < most:
            if self._read > most:
                raise damaged("drained", state["drained"], "null: the data below has not ended")
            number, taken = self._read, self._take()
            if taken is None:
                break
            if number in wanted:
                held[number] = taken
        self._slots = [held.get(number) for number in numbers]
        if not ended and None in self._slots:
            raise damaged("draws", state["draws"], "a number of elements that the data below has")
        if ended:
            self._end()
            assert self._rest is not None
            self._drained = checked_count(state["drained"], "drained", len(self._rest))
            for _ in range(self._drained):
                self._rest.popleft()

    def close(self) -> None:
        self._slots, self._rest = [], None
        super().close()
