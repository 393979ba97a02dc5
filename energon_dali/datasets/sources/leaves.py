"""What the datasets over several leaves have in common: names, keys, states, and reading ahead over all leaves."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from typing_extensions import Self

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.restore_key import Key, expect_name, key_from_json, set_restore_key
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.sources.leaf_states import LeafStates
from energon_dali.datasets.stream import StreamContext, StreamIterator, restore_stream
from energon_dali.errors import ConfigError, StateError
from energon_dali.shards.documents.state_entries import count_of
from energon_dali.worker_config import WorkerConfig

READ_AHEAD = 32
"""Samples over all leaves that are asked of their readers at once."""

_REMOTE_LEAVES_AT_ONCE = 16
"""Leaves in remote storage that are asked at the same time: each costs a request's latency."""


class LeavesDataset(SavableDataset[Any]):
    """A dataset over leaves, whose elements it gives with the number of their leaf in front of the restore key.

    Args:
        leaves: Sources, or anything around sources that gives their samples one by one, such as a cook stage.
        names: For statistics and messages; None are the paths of the leaves, as short as they stay different.
        worker_config: Left out, that of the leaves, which must be one.

    Raises:
        ConfigError: There is no leaf, a list has another length, or the worker configurations differ.
    """

    key_name = "BlendDataset"
    """Stands in restore keys; the names are Energon's."""

    def __init__(
        self,
        leaves: Sequence[SavableDataset[Any]],
        *,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        kind = type(self).__name__
        if not leaves:
            raise ConfigError(f"{kind} was given no dataset: give at least one.")
        config = worker_config or leaves[0].worker_config
        if any(leaf.worker_config != config for leaf in leaves):
            raise ConfigError(f"{kind} was given datasets with different worker configurations: build all with one.")
        super().__init__(worker_config=config)
        self.leaves = tuple(leaves)
        self.names = tuple(short_names([name_of(leaf) for leaf in leaves]) if names is None else names)
        if len(self.names) != len(self.leaves) or len(set(self.names)) != len(self.names):
            raise ConfigError(f"{kind} needs one name per dataset, all different; names={list(self.names)}.")

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return self.leaves

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        twin = copy.copy(self)
        twin.leaves = children
        return twin

    def config(self) -> dict[str, Any]:
        return {**super().config(), "inner": [leaf.inner_config() for leaf in self.leaves]}

    def len_stream(self, stream: int) -> int:
        """Returns the number of samples of all leaves in one pass."""
        return sum(leaf.len_stream(stream) for leaf in self.leaves)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of a key (name, number of the leaf, *inner key), made anew.

        Raises:
            StateError: The key is not of this dataset.
        """
        restore_key = key_from_json(restore_key)
        leaf = self.leaves[self._leaf_of(restore_key)]
        return set_restore_key(leaf.restore_sample(restore_key[2:]), restore_key)

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        leaves = [self._leaf_of(key) for key in keys]
        made: list[Any] = [None] * len(keys)
        for leaf in dict.fromkeys(leaves):
            places = [place for place, number in enumerate(leaves) if number == leaf]
            elements = self.leaves[leaf].restore_samples([keys[place][2:] for place in places])
            for place, element in zip(places, elements, strict=True):
                made[place] = set_restore_key(element, keys[place])
        return made

    def _leaf_of(self, key: Key) -> int:
        leaf: int = expect_name(key, self.key_name)[1]
        if not 0 <= leaf < len(self.leaves):
            raise StateError(
                f"The restore key {key!r} is of dataset {leaf}, and there are {len(self.leaves)} here. Give a "
                "key of this very list of datasets."
            )
        return leaf


_SOURCE_STATE = {"epoch", "position"}
"""Entries of the state of a source that is a leaf itself."""


class LeavesIterator(StreamIterator[Any]):
    """The iterators of the leaves in one stream. A leaf is opened when its first sample is wanted.

    Args:
        dataset: The leaves.
        context: The stream.
    """

    mixes = True
    """Whether the leaves take turns, so that little is read of each at a time."""

    def __init__(self, dataset: LeavesDataset, context: StreamContext) -> None:
        self._leaves = dataset.leaves
        self._names = dataset.names
        self._key_name = dataset.key_name
        self._counters = [f"blend.samples.{name}" for name in dataset.names]
        self._context = replace(context, feedback=None)
        self._metrics = context.metrics
        self._stream = context.stream
        self._iterators: dict[int, StreamIterator[Any]] = {}
        self._states = LeafStates(len(dataset.leaves))
        self._remote = [is_remote(leaf) for leaf in dataset.leaves]
        self._pool: ThreadPoolExecutor | None = None
        self._key: Key = ()

    def _iterator(self, leaf: int) -> StreamIterator[Any]:
        iterator = self._iterators.get(leaf)
        if iterator is None:
            iterator = self._iterators[leaf] = self._leaves[leaf].open(self._context)
            state = self._states[leaf]
            if state is not None:
                restore_stream(iterator, state, self._stream)
            if self.mixes:
                iterator.read_ahead(0)  # it reads what it is told to, and else one sample at a time
        return iterator

    def _take(self, leaf: int) -> Any:
        """Returns the next sample of a leaf; raises StopIteration where its epoch ends."""
        iterator = self._iterators.get(leaf) or self._iterator(leaf)
        try:
            element = next(iterator)
        finally:
            self._states[leaf] = iterator.state_dict()
        self._key = (self._key_name, leaf, *iterator.last_key(element))
        self._metrics.count(self._counters[leaf])
        return set_restore_key(element, self._key)

    def _read_ahead(self, draws: Sequence[int]) -> None:
        """Lets the leaves read what the next draws take, those in remote storage all at the same time."""
        remote = []
        for leaf, count in Counter(draws).items():
            if self._remote[leaf]:
                remote.append((self._iterator(leaf), count))
            elif count > 1:  # a single sample is read from a disk when its turn comes
                self._iterator(leaf).read_ahead(count)
        if len(remote) == 1:
            remote[0][0].read_ahead(remote[0][1])
        elif remote:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_REMOTE_LEAVES_AT_ONCE, thread_name_prefix="energon-dali-blend")
            for _ in self._pool.map(lambda wanted: wanted[0].read_ahead(wanted[1]), remote):
                pass

    def last_key(self, element: Any) -> Key:
        return self._key

    def _load_leaf_states(self, saved: Any) -> None:
        """Continues the leaves at their saved states; raises StateError if they are of another number of leaves."""
        self._states.load(saved)
        for leaf in range(len(self._leaves)):
            state = self._states[leaf]
            if state is None:
                continue
            if state.keys() == _SOURCE_STATE:  # checked without opening: a blend of hundreds is restored at once
                for name in _SOURCE_STATE:
                    count_of(state, name)
            else:
                self._iterator(leaf)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        for iterator in self._iterators.values():
            iterator.close()
        self._iterators.clear()


def source_of(leaf: SavableDataset[Any]) -> SourceDataset | None:
    """Returns the source below a leaf; None if there is none, or several."""
    while not isinstance(leaf, SourceDataset):
        if len(leaf.children) != 1:
            return None
        (leaf,) = leaf.children
    return leaf


def with_source(leaf: SavableDataset[Any], change: Callable[[SourceDataset], SourceDataset]) -> SavableDataset[Any]:
    """Returns a leaf with a changed source; the leaf as it is where it has none."""
    if source_of(leaf) is None:
        return leaf
    if isinstance(leaf, SourceDataset):
        return change(leaf)
    return leaf.with_children(*(with_source(child, change) for child in leaf.children))


def is_remote(leaf: SavableDataset[Any]) -> bool:
    """Returns whether a leaf is read from storage where each request waits for a network."""
    source = source_of(leaf)
    return source is not None and bool(getattr(source.reader, "is_remote", False))


def name_of(leaf: SavableDataset[Any]) -> str:
    """Returns the path of a leaf's source, or what the leaf says of itself."""
    source = source_of(leaf)
    return leaf.describe() if source is None else source.name


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of paths, as many as make them different; equal paths get their number behind them."""
    twice = Counter(paths)
    parts = {path: path.rstrip("/").split("/") for path in twice}
    names: dict[str, str] = {}
    length = 1
    while len(names) < len(parts):
        tails = {path: "/".join(parts[path][-length:]) for path in parts if path not in names}
        shared = Counter(tails.values())
        names.update({path: tail for path, tail in tails.items() if shared[tail] == 1 or length >= len(parts[path])})
        length += 1
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[names[path]] += 1
        result.append(names[path] if twice[path] == 1 else f"{names[path]}#{seen[names[path]]}")
    return result
