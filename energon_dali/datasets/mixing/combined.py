"""What the datasets over several others have in common: their members, checked, each at a place of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from typing_extensions import Self

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.restore_key import Key, expect_name, set_restore_key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, StateError
from energon_dali.shards.documents.state_entries import damaged
from energon_dali.worker_config import WorkerConfig


class CombinedDataset(SavableDataset[Any]):
    """A dataset over several others, whose elements it gives with their number in front of the restore key.

    The members are copies that know their place: two with the same data have different orders.

    Args:
        datasets: The members, at least one.
        worker_config: Left out, that of the members, which must be one.

    Raises:
        ConfigError: There is no member, one is no dataset, or their worker configurations differ.
    """

    def __init__(self, datasets: Sequence[SavableDataset[Any]], *, worker_config: WorkerConfig | None = None) -> None:
        name = type(self).__name__
        if not datasets:
            raise ConfigError(f"{name} was given no dataset: give at least one.")
        for dataset in datasets:
            if not isinstance(dataset, SavableDataset):
                raise ConfigError(
                    f"{name} was given {dataset!r}, which is no dataset of energon_dali. Give what get_train_dataset "
                    "or get_val_dataset returns, or another dataset of this package around it."
                )
        config = worker_config or datasets[0].worker_config
        other = next((dataset for dataset in datasets if dataset.worker_config != config), None)
        if other is not None:
            raise ConfigError(
                f"{name} was given datasets for {config} and for {other.worker_config}. All datasets of a tree share "
                "one WorkerConfig: build each of them with the same."
            )
        super().__init__(worker_config=config)
        self.datasets: tuple[SavableDataset[Any], ...] = tuple(
            dataset.placed(number) for number, dataset in enumerate(datasets, start=1)
        )

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return self.datasets

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        twin = copy.copy(self)
        twin.datasets = children
        return twin

    def config(self) -> dict[str, Any]:
        # A list also for a single member: what a member is must not depend on how many there are.
        return {**super().config(), "inner": [member.inner_config() for member in self.datasets]}

    def len_stream(self, stream: int) -> int:
        """Returns the number of elements of all members together."""
        return sum(member.len_stream(stream) for member in self.datasets)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key (name of this dataset, number of the member, *inner key), made anew.

        Raises:
            StateError: The key is not of this dataset.
        """
        name = type(self).__name__
        restore_key = expect_name(restore_key, name)
        number = restore_key[1]
        if not 0 <= number < len(self.datasets):
            raise StateError(
                f"The restore key {restore_key!r} names member {number}, and this {name} has {len(self.datasets)}. "
                "Build it as it was built when the key was made."
            )
        return set_restore_key(self.datasets[number].restore_sample(restore_key[2:]), restore_key)


class CombinedIterator(StreamIterator[Any]):
    """The members' iterators of one stream, and their states."""

    def __init__(self, dataset: CombinedDataset, context: StreamContext) -> None:
        self._name = type(dataset).__name__
        self._members = [member.open(context) for member in dataset.datasets]
        self._states: list[State | None] = [None] * len(self._members)
        self._key: Key = ()

    def _take(self, number: int) -> Any:
        """Returns the next element of a member; raises StopIteration where its epoch ends."""
        member = self._members[number]
        self._states[number] = None
        element = next(member)
        self._key = (self._name, number, *member.last_key(element))
        return set_restore_key(element, self._key)

    def last_key(self, element: Any) -> Key:
        return self._key

    def _member_states(self) -> list[State]:
        # Only the member that was asked last has moved: a blend of a hundred must not ask all for each element.
        states = self._states
        for number, state in enumerate(states):
            if state is None:
                states[number] = self._members[number].state_dict()
        return list(states)  # type: ignore[arg-type]

    def _load_member_states(self, states: Sequence[State]) -> None:
        if len(states) != len(self._members):
            raise StateError(
                f"The state holds {len(states)} members of a {self._name}, and this one has {len(self._members)}. "
                "Build it with the same datasets in the same order."
            )
        self._states = [None] * len(self._members)  # what was asked before would be told of members that never moved
        for member, state in zip(self._members, states, strict=True):
            if not isinstance(state, dict):
                raise damaged("members", state, "a list of states")
            member.load_state_dict(state)

    def close(self) -> None:
        for member in self._members:
            member.close()
