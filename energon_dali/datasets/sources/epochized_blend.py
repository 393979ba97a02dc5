"""Many sources below one task encoder, whose samples come a given number of times per epoch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from energon_dali.datasets.arguments import check_number
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.sources.leaves import READ_AHEAD, LeavesDataset, LeavesIterator, source_of, with_source
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.plan import Interleave, OrderSpec, RepeatedOrder, mix
from energon_dali.shards.documents.state_entries import count_of, indices_of, list_of
from energon_dali.worker_config import WorkerConfig


class EpochizedBlendDataset(LeavesDataset):
    """Gives epochs in which every sample of a leaf comes `repetitions` times, over all streams together.

    With 1.5 repetitions each epoch has all samples once and a half of them once more, and the next epoch has the other
    half (`plan.RepeatedOrder`). The leaves are interleaved in proportion to what they have in the epoch, so that shares
    hold everywhere in it and all leaves end together (`plan.Interleave`). Samples that are skipped or fail are left
    out; what a leaf gives beyond its plan (cookers that are generators) comes at the end of the epoch.

    Args:
        leaves: Sources, or a cook stage around one. Copies are made that repeat as often as asked and then end.
        repetitions: One per leaf, finite and not negative; fractions as well.
        repeat: Begin the next epoch for ever; else every epoch ends with StopIteration.
        seed: Of the interleaving; None is that of the job.
        names: For statistics and messages; None are the paths of the leaves.
        worker_config: Left out, that of the leaves.

    Raises:
        ConfigError: The lists differ in length, a number of repetitions cannot work, or a leaf has no source.
        DatasetError: No leaf has a sample, and repeat=True would wait for one for ever.
    """

    def __init__(
        self,
        leaves: Sequence[SavableDataset[Any]],
        repetitions: Sequence[float],
        *,
        repeat: bool,
        seed: int | None = None,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if len(repetitions) != len(leaves):
            raise ConfigError(f"{len(repetitions)} repetitions were given for {len(leaves)} datasets: one for each.")
        for times in repetitions:
            check_number("the number of repetitions", times)
        offset, repeated = 0, []
        for leaf, times in zip(leaves, repetitions, strict=True):
            source = source_of(leaf)
            if source is None or not isinstance(source.order, OrderSpec):
                raise ConfigError(f"{leaf.describe()} has no single source whose samples could be repeated.")
            repeated.append(_repeated(leaf, source.order, times, offset))
            offset += source.order.base.num_samples
        super().__init__(repeated, names=names, worker_config=worker_config)
        self.repetitions = tuple(float(times) for times in repetitions)
        self.repeat = repeat
        self.seed = self.worker_config.seed_offset if seed is None else seed
        sizes = [_source(leaf).order.base.num_samples for leaf in self.leaves]
        if repeat and not any(size and times for size, times in zip(sizes, self.repetitions, strict=True)):
            raise DatasetError(
                f"None of {', '.join(self.names)} has a sample to repeat: their split parts or subsets are empty, or "
                "repetitions are 0."
            )

    def placed(self, number: int) -> EpochizedBlendDataset:
        twin = copy.copy(super().placed(number))
        twin.seed = mix(self.seed, number)
        return twin

    def describe(self) -> str:
        return f"EpochizedBlendDataset({len(self.leaves)} datasets, repeat={self.repeat})"

    def config(self) -> dict[str, Any]:
        own = {"repetitions": list(self.repetitions), "repeat": self.repeat, "seed": self.seed}
        return {**super().config(), **own}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _EpochIterator(self, context)

    def lengths(self, stream: int, epoch: int) -> list[int]:
        """Returns how many samples each leaf has for a stream in an epoch."""
        return [_source(leaf).order.stream(stream).num_samples(epoch) for leaf in self.leaves]


def _repeated(leaf: SavableDataset[Any], order: OrderSpec, times: float, offset: int) -> SavableDataset[Any]:
    rotated = dataclasses.replace(order, range_offset=(order.range_offset + offset) % order.num_streams)

    def change(source: SourceDataset) -> SourceDataset:
        twin = copy.copy(source)
        twin.order, twin.repeat = RepeatedOrder(rotated, times), False
        return twin

    return with_source(leaf, change)


def _source(leaf: SavableDataset[Any]) -> SourceDataset:
    source = source_of(leaf)
    assert source is not None
    return source


class _EpochIterator(LeavesIterator):
    def __init__(self, dataset: EpochizedBlendDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._dataset = dataset
        self._epoch = 0
        self._window = 0
        self._place = 0
        self._ended: set[int] = set()
        self._interleave: Interleave | None = None
        self._draws: list[int] | None = None
        self._read_until = 0

    def __next__(self) -> Any:
        while True:
            leaf = self._next_leaf()
            if leaf is None:
                self._epoch += 1
                self._window = self._place = 0
                self._ended.clear()
                self._interleave = self._draws = None
                if not self._dataset.repeat:
                    raise StopIteration
                continue
            try:
                return self._take(leaf)
            except StopIteration:
                self._ended.add(leaf)

    def _next_leaf(self) -> int | None:
        """Returns the leaf whose turn it is; None at the end of the epoch."""
        if self._interleave is None:
            lengths = self._dataset.lengths(self._stream, self._epoch)
            self._interleave = Interleave(lengths, self._dataset.seed, self._stream, self._epoch)
        while self._window < self._interleave.windows:
            if self._draws is None:
                self._draws = self._interleave.draws(self._window).tolist()
                self._read_until = self._place
            while self._place < len(self._draws):
                if self._place >= self._read_until:
                    self._read_until = min(self._place + READ_AHEAD, len(self._draws))
                    coming = self._draws[self._place : self._read_until]
                    self._read_ahead([leaf for leaf in coming if leaf not in self._ended])
                leaf = self._draws[self._place]
                self._place += 1
                if leaf not in self._ended:  # else samples were skipped or failed, and it has none left
                    return leaf
            self._window, self._place, self._draws = self._window + 1, 0, None
        # Every leaf has to end its epoch here, with or without further samples.
        return next((leaf for leaf in range(len(self._leaves)) if leaf not in self._ended), None)

    def state_dict(self) -> State:
        return {
            "epoch": self._epoch,
            "window": self._window,
            "place": self._place,
            "ended": sorted(self._ended),
            "leaves": self._states.snapshot(),
        }

    def load_state_dict(self, state: State) -> None:
        epoch, window, place = count_of(state, "epoch"), count_of(state, "window"), count_of(state, "place")
        ended = set(indices_of(state, "ended", len(self._leaves)))
        self._load_leaf_states(list_of(state, "leaves"))
        self._epoch, self._window, self._place, self._ended = epoch, window, place, ended
