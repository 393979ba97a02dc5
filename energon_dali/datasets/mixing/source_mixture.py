"""What mixtures of sources add to other mixtures: names, and reading ahead from all sources at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.mixture import MixtureDataset, MixtureIterator
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.plan import OrderSpec
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.store import current_scope
from energon_dali.worker_config import WorkerConfig

READ_AHEAD = 32
"""Samples over all sources that are asked of their readers at once."""

REMOTE_READ_AHEAD = 512
"""Samples over all sources that are requested from remote storage before they are wanted, within the loader's limit of
bytes."""

_REMOTE_SOURCES_AT_ONCE = 16
"""Sources in remote storage whose index is asked at the same time: each costs the latency of a request."""


class SourceMixture(MixtureDataset):
    """A mixture below one task encoder: its members are sources, or yield the samples of sources one by one.

    Args:
        datasets: Sources, or datasets around one each, such as a cook stage.
        names: For statistics and messages. Default: the last parts of their paths, as many as tell them apart.
        worker_config: Default: that of the datasets, which must be the same for all.

    Raises:
        ConfigError: There is no dataset, the names are not as many and all different, or the worker configurations
            differ.
    """

    key_name = "BlendDataset"  # Energon's name

    def __init__(
        self,
        datasets: Sequence[SavableDataset[Any]],
        *,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(datasets, worker_config=worker_config)
        self.names = tuple(short_names([name_of(dataset) for dataset in datasets]) if names is None else names)
        if len(self.names) != len(self.datasets) or len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"{type(self).__name__} needs one name per dataset, all different; names={list(self.names)}."
            )

    @property
    def counters(self) -> list[str]:
        return [f"blend.samples.{name}" for name in self.names]

    def describe(self) -> str:
        return f"{type(self).__name__}({len(self.datasets)} datasets)"


class SourceMixtureIterator(MixtureIterator):
    """The iterators of the sources in one stream, which read ahead together.

    Args:
        dataset: The sources.
        context: The stream.
    """

    def __init__(self, dataset: SourceMixture, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._names = dataset.names
        requests = current_scope().requests
        self._remote = [requests.is_wanted or is_remote(member) for member in dataset.datasets]
        self._any_remote = any(self._remote)
        self._draws_ahead = REMOTE_READ_AHEAD if self._any_remote and requests.is_allowed else READ_AHEAD
        self.after_fork()
        drop_in_child(self)

    def after_fork(self) -> None:
        """Leaves the threads to the parent: a forked child does not have them."""
        self._pool: ThreadPoolExecutor | None = None

    def _iterator(self, number: int) -> StreamIterator[Any]:
        iterator = self._iterators.get(number)
        if iterator is None:
            iterator = super()._iterator(number)
            iterator.read_ahead(0)  # from now on it reads what it is told to, or else one sample at a time
        return iterator

    def _read_ahead(self, draws: Sequence[int]) -> None:
        """Lets the sources read what the next draws take.

        Args:
            draws: Numbers of the sources. Those in remote storage request all of them, the others read READ_AHEAD.
        """
        remote: list[tuple[StreamIterator[Any], int]] = []
        for number, count in Counter(draws[:READ_AHEAD]).items():
            if not self._remote[number] and count > 1:  # a single sample is read from a disk when it is drawn
                self._iterator(number).read_ahead(count)
        if self._any_remote:
            remote = [
                (self._iterator(number), count) for number, count in Counter(draws).items() if self._remote[number]
            ]
        if len(remote) == 1:
            remote[0][0].read_ahead(remote[0][1])
        elif remote:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_REMOTE_SOURCES_AT_ONCE, thread_name_prefix="energon-dali-blend")
            # Each in a copy of the context, because requests belong to the loader that reads.
            jobs = [self._pool.submit(copy_context().run, iterator.read_ahead, count) for iterator, count in remote]
            try:
                for job in jobs:
                    job.result()
            finally:  # after Ctrl-C or an error, none of them may still be at work on its source
                for job in jobs:
                    job.cancel()
                wait(jobs)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        super().close()


def source_of(dataset: SavableDataset[Any]) -> SourceDataset | None:
    """Returns the source that a dataset reads from; None if there is none, or several."""
    while not isinstance(dataset, SourceDataset):
        if len(dataset.children) != 1:
            return None
        (dataset,) = dataset.children
    return dataset


def with_source(dataset: SavableDataset[Any], change: Callable[[SourceDataset], SourceDataset]) -> SavableDataset[Any]:
    """Returns a copy of a dataset with a changed source; the dataset itself if it has no single source."""
    if source_of(dataset) is None:
        return dataset
    if isinstance(dataset, SourceDataset):
        return change(dataset)
    return dataset.with_children(*(with_source(child, change) for child in dataset.children))


def rotated(order: OrderSpec, offset: int) -> OrderSpec:
    """Returns an order whose remainder goes to other streams.

    Args:
        order: Of one of several sources.
        offset: Number of samples in the sources before it.
    """
    return dataclasses.replace(order, range_offset=(order.range_offset + offset) % order.num_streams)


def is_remote(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a dataset is read from storage where each request waits for a network."""
    source = source_of(dataset)
    return source is not None and bool(getattr(source.reader, "is_remote", False))


def name_of(dataset: SavableDataset[Any]) -> str:
    """Returns the path of a dataset's source, or the description of the dataset if it has no single source."""
    source = source_of(dataset)
    return dataset.describe() if source is None else source.name


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of paths, as many as tell them apart; equal paths get a number: "train#2"."""
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
