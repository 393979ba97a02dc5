"""Datasets over several others: their members, restore keys and states, and the one that takes its members in turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import Self

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset, inner_config
from energon_dali.datasets.restore_key import expect_name, key_from_json
from energon_dali.datasets.stream import Move, PassingIterator, State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, StateError
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards.documents.state_entries import count_of, damaged, list_of, restore_stream
from energon_dali.worker_config import WorkerConfig


class MixtureDataset(SavableDataset[Any]):
    """A dataset over several others. The restore keys of its elements begin with the number of the member.

    Args:
        datasets: The members, at least one.
        worker_config: Default: that of the members, which must be the same for all.

    Raises:
        ConfigError: There is no member, one is not a dataset, or their worker configurations differ.
    """

    holds_elements = False
    plan_obstacle = None

    key_name: str | None = None
    """Name in restore keys; None is the name of the class."""

    def __init__(self, datasets: Sequence[SavableDataset[Any]], *, worker_config: WorkerConfig | None = None) -> None:
        name = type(self).__name__
        if not datasets:
            raise ConfigError(f"{name} was given no dataset: give at least one.")
        for dataset in datasets:
            if not isinstance(dataset, SavableDataset):
                raise ConfigError(
                    f"{name} was given {dataset!r}, which is not a dataset of energon_dali. Give what "
                    "get_train_dataset or get_val_dataset returns, or another dataset of this package around it."
                )
        config = worker_config or datasets[0].worker_config
        other = next((dataset for dataset in datasets if dataset.worker_config != config), None)
        if other is not None:
            raise ConfigError(
                f"{name} was given datasets for {config} and for {other.worker_config}. All datasets of a tree share "
                "one WorkerConfig: build each of them with the same."
            )
        super().__init__(worker_config=config)
        self.datasets: tuple[SavableDataset[Any], ...] = tuple(datasets)

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return self.datasets

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        twin = copy.copy(self)
        twin.datasets = children
        return twin

    @property
    def counters(self) -> list[str]:
        """Names of the counters of the members' elements in the statistics; empty where they are not counted."""
        return []

    def config(self) -> dict[str, Any]:
        # A list also for a single member: the type of the entry must not depend on how many there are.
        return {**super().config(), "inner": [inner_config(member) for member in self.datasets]}

    def len_stream(self, stream: int) -> int:
        """Returns the number of elements of all members together, in one pass over each."""
        return sum(member.len_stream(stream) for member in self.datasets)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key (name, number of the member, *inner key), made again.

        Raises:
            StateError: The key is not of this dataset.
        """
        member = self.datasets[self._member_of(restore_key)]
        restore_key = key_from_json(restore_key)
        return set_restore_key(member.restore_sample(restore_key[2:]), restore_key)

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        members = [self._member_of(key) for key in keys]
        made: list[Any] = [None] * len(keys)
        for member in dict.fromkeys(members):
            indices = [index for index, number in enumerate(members) if number == member]
            elements = self.datasets[member].restore_samples([keys[index][2:] for index in indices])
            for index, element in zip(indices, elements, strict=True):
                made[index] = set_restore_key(element, keys[index])
        return made

    def _member_of(self, key: Key) -> int:
        """Returns the number of the member that made an element."""
        name = self.key_name or type(self).__name__
        number: int = expect_name(key, name)[1]
        if not 0 <= number < len(self.datasets):
            raise StateError(
                f"The restore key {key!r} names member {number}, and this {name} has {len(self.datasets)}. Build it as "
                "it was built when the key was made."
            )
        return number


def numbered(datasets: Sequence[SavableDataset[Any]]) -> tuple[SavableDataset[Any], ...]:
    """Returns copies of datasets that know their number in a mixture: two with the same data have different orders."""
    return tuple(dataset.at_position(number) for number, dataset in enumerate(datasets, start=1))


class MixtureIterator(PassingIterator):
    """The iterators of the members in one stream. A member is opened when its first element or its state is wanted.

    Args:
        dataset: The members.
        context: The stream.
    """

    def __init__(self, dataset: MixtureDataset, context: StreamContext) -> None:
        self._datasets = dataset.datasets
        self._key_name = dataset.key_name or type(dataset).__name__
        self._counters = dataset.counters
        self._context = replace(context, feedback=None)
        self._metrics = context.metrics
        self._stream = context.stream
        self._iterators: dict[int, StreamIterator[Any]] = {}
        self._states: list[State | None] = [None] * len(dataset.datasets)
        """The members' states, None for one that was not asked for yet. A change makes a new list."""
        self._moved: set[int] = set()
        """Members that moved after their state was taken."""
        self._key: Key = ()

    def _iterator(self, number: int) -> StreamIterator[Any]:
        iterator = self._iterators.get(number)
        if iterator is None:
            iterator = self._iterators[number] = self._datasets[number].open(self._context)
            state = self._states[number]
            if state is not None:
                restore_stream(iterator, state, self._stream)
        return iterator

    def _member(self, number: int) -> StreamIterator[Any]:
        self._moved.add(number)
        return self._iterators.get(number) or self._iterator(number)

    def _take(self, number: int, _: int = 1) -> int:
        if not super()._take(number):
            return 0
        self._key = (self._key_name, number, *self._iterators[number].last_key(self._element))
        if self._counters:
            self._metrics.count(self._counters[number])
        set_restore_key(self._element, self._key)
        return 1

    def last_key(self, element: Any) -> Key:
        return self._key

    def _member_states(self) -> list[State]:
        """Returns the states of the members, also of those that are at their beginning. It never changes."""
        stale = [number for number, state in enumerate(self._states) if state is None or number in self._moved]
        if stale:
            self._states = self._states.copy()
            for number in stale:
                self._states[number] = self._iterator(number).state_dict()
            self._moved.clear()
        return self._states  # type: ignore[return-value]

    def _load_member_states(self, states: list[Any], name: str) -> None:
        """Continues the members at their states.

        Args:
            states: As they were saved.
            name: Of the entry of the state, for messages.

        Raises:
            StateError: They are not states of these members.
        """
        if len(states) != len(self._datasets):
            raise StateError(
                f"The state is of {len(states)} datasets, and {len(self._datasets)} are mixed here. Give the same "
                "datasets in the same order as when it was saved; to change a mixture, start a new job from the "
                "model's checkpoint."
            )
        for state in states:
            if not isinstance(state, dict):
                raise damaged(name, state, "a list of states")
        self._states = list(states)
        self._moved.clear()
        for number in range(len(states)):
            if number in self._iterators:
                restore_stream(self._iterators[number], states[number], self._stream)
            else:
                self._iterator(number)

    def close(self) -> None:
        for iterator in self._iterators.values():
            iterator.close()
        self._iterators.clear()


class ConcatDataset(MixtureDataset):
    """Yields in each stream all elements of the first dataset, then all of the second, and so on; then the epoch ends.

    A dataset that never ends keeps those after it from their turn.

    Args:
        *datasets: At least one, with the same worker configuration.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: There is no dataset, or their worker configurations differ.
    """

    @explain_call
    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig | None = None) -> None:
        super().__init__(datasets, worker_config=worker_config)
        self.datasets = numbered(self.datasets)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _ConcatIterator(self, context)


class _ConcatIterator(MixtureIterator):
    """Takes the members in turn."""

    def __init__(self, dataset: ConcatDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._current = 0

    def _pass(self, count: int, move: Move) -> int:
        moved = 0
        while moved < count:
            if self._current == len(self._datasets):
                self._current = 0
                break
            wanted = count - moved
            taken = move(self._current, wanted)
            moved += taken
            if taken < wanted:
                self._current += 1
        return moved

    def state_dict(self) -> State:
        return {"current": self._current, "members": self._member_states()}

    def load_state_dict(self, state: State) -> None:
        current = count_of(state, "current", len(self._datasets))
        self._load_member_states(list_of(state, "members"), "members")
        self._current = current
