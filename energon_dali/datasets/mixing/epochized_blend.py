"""Mixes sources in epochs in which the samples of each come a given number of times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.datasets.arguments import check_number
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.source_mixture import (
    READ_AHEAD,
    SourceMixture,
    SourceMixtureIterator,
    rotated,
    source_of,
    with_source,
)
from energon_dali.datasets.planned import Planned, interleaved, joined
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.plan import Interleave, OrderSpec, RepeatedOrder, mix
from energon_dali.shards.documents.state_entries import count_of, indices_of, list_of
from energon_dali.worker_config import WorkerConfig


class EpochizedBlendDataset(SourceMixture):
    """Yields epochs in which every sample of a source comes `repetitions` times, over all streams together.

    With 1.5 repetitions each epoch has all samples once and half of them once more; the next epoch has the other half
    (`plan.RepeatedOrder`). The sources are interleaved in proportion to what they have in the epoch, so that the
    proportions hold everywhere in it and all sources end together (`plan.Interleave`). Samples that are skipped
    or fail are left out. What a source yields beyond its plan (cookers that are generators) comes at the end of the
    epoch.

    Args:
        datasets: Sources, or a cook stage around one each. They are copied; the copies repeat as asked and then end.
        repetitions: One per dataset, finite and at least 0; may be fractions.
        repeat: Begin the next epoch after each one; False ends every epoch with StopIteration.
        seed: Of the interleaving; None is that of the job.
        names: For statistics and messages; None are the paths of the sources.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: The lists differ in length, a number of repetitions is out of range, or a dataset has no source.
        DatasetError: No dataset has a sample, and repeat=True would wait indefinitely for one.
    """

    def __init__(
        self,
        datasets: Sequence[SavableDataset[Any]],
        repetitions: Sequence[float],
        *,
        repeat: bool,
        seed: int | None = None,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if len(repetitions) != len(datasets):
            raise ConfigError(f"{len(repetitions)} repetitions were given for {len(datasets)} datasets: one for each.")
        for times in repetitions:
            check_number("the number of repetitions", times)
        offset, repeated = 0, []
        for dataset, times in zip(datasets, repetitions, strict=True):
            source = source_of(dataset)
            if source is None or not isinstance(source.order, OrderSpec):
                raise ConfigError(f"{dataset.describe()} has no single source whose samples could be repeated.")
            repeated.append(_repeated(dataset, source.order, times, offset))
            offset += source.order.base.num_samples
        super().__init__(repeated, names=names, worker_config=worker_config)
        self.repetitions = tuple(float(times) for times in repetitions)
        self.repeat = repeat
        self.seed = self.worker_config.seed_offset if seed is None else seed
        sizes = [_source(dataset).order.base.num_samples for dataset in self.datasets]
        if repeat and not any(size and times for size, times in zip(sizes, self.repetitions, strict=True)):
            raise DatasetError(
                f"None of {', '.join(self.names)} has a sample to repeat: their split parts or subsets are empty, or "
                "repetitions are 0."
            )

    def at_position(self, number: int) -> EpochizedBlendDataset:
        twin = copy.copy(super().at_position(number))
        twin.seed = mix(self.seed, number)
        return twin

    def describe(self) -> str:
        return f"EpochizedBlendDataset({len(self.datasets)} datasets, repeat={self.repeat})"

    def config(self) -> dict[str, Any]:
        own = {"repetitions": list(self.repetitions), "repeat": self.repeat, "seed": self.seed}
        return {**super().config(), **own}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _EpochIterator(self, context)

    def lengths(self, stream: int, epoch: int) -> list[int]:
        """Returns how many samples each member has for a stream in an epoch."""
        return [_source(dataset).order.stream(stream).num_samples(epoch) for dataset in self.datasets]


def _repeated(dataset: SavableDataset[Any], order: OrderSpec, times: float, offset: int) -> SavableDataset[Any]:
    def change(source: SourceDataset) -> SourceDataset:
        twin = copy.copy(source)
        twin.order, twin.repeat = RepeatedOrder(rotated(order, offset), times), False
        return twin

    return with_source(dataset, change)


def _source(dataset: SavableDataset[Any]) -> SourceDataset:
    source = source_of(dataset)
    assert source is not None
    return source


class _EpochIterator(SourceMixtureIterator):
    def __init__(self, dataset: EpochizedBlendDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._dataset = dataset
        self._epoch = 0
        self._window = 0
        self._index = 0
        self._ended: set[int] = set()
        self._interleave: Interleave | None = None
        self._draws: list[int] | None = None
        self._read_until = 0

    def __next__(self) -> Any:
        while True:
            number = self._next_member()
            if number is None:
                self._enter_next_epoch()
                if not self._dataset.repeat:
                    raise StopIteration
                continue
            try:
                return self._take(number)
            except StopIteration:
                self._ended.add(number)

    def skip(self, count: int) -> int:
        moved = 0
        while moved < count:
            draws = self._pass_window(count - moved, self._skip)
            if draws is None:
                break
            moved += len(draws)
        return moved

    def plan(self, count: int) -> Planned:
        pieces: dict[int, Planned] = {}

        def move(number: int, wanted: int) -> int:
            pieces[number] = self._plan(number, wanted)
            return len(pieces[number])

        parts: list[Planned] = []
        moved = 0
        while moved < count:
            pieces.clear()
            draws = self._pass_window(count - moved, move)
            if draws is None:
                break
            if len(draws):
                parts.append(interleaved(draws, pieces))
                moved += len(draws)
        return joined(parts)

    def _pass_window(self, count: int, move: Callable[[int, int], int]) -> NDArray[np.int64] | None:
        """Moves the members by up to `count` draws of the current window, or to the next window or epoch.

        Args:
            count: At least 1.
            move: Moves (a member, by its elements); returns by how many, fewer if its epoch ended.

        Returns:
            The draws that gave an element, none between windows and epochs; None if the epoch ended for good.
        """
        none = np.zeros(0, np.int64)
        number = self._next_member(read=False)
        if number is None:
            self._enter_next_epoch()
            return none if self._dataset.repeat else None
        assert self._interleave is not None
        if self._draws is None:  # the windows are over; members tell their ends
            if move(number, 1):
                return np.array([number])
            self._ended.add(number)
            return none
        self._index -= 1  # `_next_member` took it
        coming = np.array(self._draws[self._index :], np.int64)
        open_draws = np.flatnonzero(~np.isin(coming, sorted(self._ended)))[:count]
        taken = coming[open_draws]
        kept = np.ones(len(taken), bool)
        for member in np.unique(taken).tolist():
            mine = np.flatnonzero(taken == member)
            moved = move(member, len(mine))
            if moved < len(mine):
                self._ended.add(member)
                kept[mine[moved:]] = False
        self._index += int(open_draws[-1]) + 1
        self._read_until = self._index
        return taken[kept]

    def _enter_next_epoch(self) -> None:
        self._epoch += 1
        self._window = self._index = 0
        self._ended.clear()
        self._interleave = self._draws = None

    def _next_member(self, *, read: bool = True) -> int | None:
        """Returns the number of the member whose turn it is; None at the end of the epoch.

        Args:
            read: Let the members read ahead.
        """
        if self._interleave is None:
            lengths = self._dataset.lengths(self._stream, self._epoch)
            self._interleave = Interleave(lengths, self._dataset.seed, self._stream, self._epoch)
        while self._window < self._interleave.windows:
            if self._draws is None:
                self._draws = self._interleave.draws(self._window).tolist()
                self._read_until = self._index
            while self._index < len(self._draws):
                if read and self._index >= self._read_until:
                    self._read_until = min(self._index + READ_AHEAD, len(self._draws))
                    coming = self._draws[self._index : self._index + self._draws_ahead]
                    missing = self._draws_ahead - len(coming)
                    if missing and self._draws_ahead > READ_AHEAD and self._window + 1 < self._interleave.windows:
                        coming = coming + self._interleave.draws(self._window + 1).tolist()[:missing]
                    self._read_ahead([number for number in coming if number not in self._ended])
                number = self._draws[self._index]
                self._index += 1
                if number not in self._ended:  # else samples were skipped or failed, and it has none left
                    return number
            self._window, self._index, self._draws = self._window + 1, 0, None
        # Every member has to end its epoch here, with or without further samples.
        return next((number for number in range(len(self._datasets)) if number not in self._ended), None)

    def state_dict(self) -> State:
        return {
            "epoch": self._epoch,
            "window": self._window,
            "place": self._index,
            "ended": sorted(self._ended),
            "leaves": self._state_rows(),
        }

    def load_state_dict(self, state: State) -> None:
        epoch, window, index = count_of(state, "epoch"), count_of(state, "window"), count_of(state, "place")
        ended = set(indices_of(state, "ended", len(self._datasets)))
        self._load_states(list_of(state, "leaves"), "leaves")
        self._epoch, self._window, self._index, self._ended = epoch, window, index, ended
