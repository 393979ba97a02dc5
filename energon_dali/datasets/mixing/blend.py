"""Draws elements from several datasets in proportion to their weights: finished datasets, or sources."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_number
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.mixture import MixtureDataset, MixtureIterator, numbered
from energon_dali.datasets.mixing.share_feedback import FEEDBACK_DRAWS
from energon_dali.datasets.mixing.source_mixture import READ_AHEAD, SourceMixture, SourceMixtureIterator, source_of
from energon_dali.datasets.planned import PLANNED_AT_ONCE, Planned, interleaved, joined
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.plan import blend_draws, mix
from energon_dali.plan.blend import GROUP_DRAWS
from energon_dali.shards.documents.state_entries import count_of, damaged, indices_of, list_of
from energon_dali.worker_config import WorkerConfig


class BlendDataset(MixtureDataset):
    """Yields elements of several datasets; each is the next element of a dataset that is drawn by weight.

    A draw depends only on the weights, the seed of the job, the stream, the number of the draw and the position of this
    blend in the tree. A dataset whose epoch has ended is not drawn again; when all have ended, the epoch of the blend
    ends. The loader's statistics count the draws: `blend.samples.0` those of the first dataset, `blend.samples.1/0`
    those of the first dataset of a blend that is the second.

    Args:
        *dataset_weights: Pairs (dataset, weight). Weights are relative and need not sum to 1. A dataset of weight 0 is
            never drawn.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: An argument is not a pair of a dataset and a weight, no weight is positive, or the worker
            configurations differ.
    """

    @explain_call
    def __init__(
        self, *dataset_weights: tuple[SavableDataset[Any], float], worker_config: WorkerConfig | None = None
    ) -> None:
        pairs = [_checked_pair(type(self).__name__, pair) for pair in dataset_weights]
        super().__init__([dataset for dataset, _ in pairs], worker_config=worker_config)
        self.datasets = numbered(self.datasets)
        self.weights = tuple(weight for _, weight in pairs)
        if not any(self.weights):
            raise ConfigError(
                f"{type(self).__name__} was given the weights {list(self.weights)}: at least one must be positive."
            )
        self.path = ""

    def at_position(self, number: int) -> Self:
        twin = super().at_position(number)
        twin.path = f"{number - 1}/{self.path}"
        return twin

    @property
    def counters(self) -> list[str]:
        return [f"blend.samples.{self.path}{number}" for number in range(len(self.datasets))]

    def describe(self) -> str:
        weights = ", ".join(f"{weight:g}" for weight in self.weights)
        return f"{type(self).__name__}(weights={weights})"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "weights": list(self.weights)}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BlendIterator(self, context)


def _checked_pair(name: str, pair: Any) -> tuple[SavableDataset[Any], float]:
    """Returns a pair (dataset, weight)."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        what = f"a {type(pair).__name__} without a weight" if isinstance(pair, SavableDataset) else repr(pair)
        raise ConfigError(f"{name} was given {what}: give pairs, as in {name}((dataset_a, 0.6), (dataset_b, 0.4)).")
    dataset, weight = pair
    number = check_number(f"{name} was given a pair whose weight", weight)
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{name} was given the weight {weight!r}: give a finite number of at least 0.")
    return dataset, number


class _BlendIterator(MixtureIterator):
    def __init__(self, dataset: BlendDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._weights = dataset.weights
        self._seed = dataset.hook_seed
        self._draws = 0
        self._running = [weight > 0 for weight in self._weights]
        self._drawn: list[int] = []
        """The next draws, in reverse order."""

    def __next__(self) -> Any:
        while True:
            if not self._drawn:
                self._draw()
            number = self._drawn.pop()
            self._draws += 1
            try:
                return self._take(number)
            except StopIteration:
                self._running[number] = False
                self._drawn.clear()
                if not any(self._running):
                    self._running = [weight > 0 for weight in self._weights]
                    raise

    def skip(self, count: int) -> int:
        return len(self._pass(count, lambda number: self._skip(number, 1) == 1))

    def plan(self, count: int) -> Planned:
        parts: list[Planned] = []

        def move(number: int) -> bool:
            part = self._plan(number, 1)
            parts.append(part)
            return len(part) == 1

        self._pass(count, move)
        return joined(parts)

    def _pass(self, count: int, move: Callable[[int], bool]) -> list[int]:
        """Moves members by an element each, as they are drawn; returns their numbers, fewer if the epoch ends.

        Args:
            count: Elements to move by.
            move: Moves a member; returns False where its epoch ends.
        """
        passed: list[int] = []
        while len(passed) < count:
            if not self._drawn:
                self._draw()
            number = self._drawn.pop()
            self._draws += 1
            if move(number):
                passed.append(number)
                continue
            self._running[number] = False
            self._drawn.clear()
            if not any(self._running):
                self._running = [weight > 0 for weight in self._weights]
                break
        return passed

    def _draw(self) -> None:
        weights = [weight if running else 0.0 for weight, running in zip(self._weights, self._running, strict=True)]
        count = GROUP_DRAWS - self._draws % GROUP_DRAWS
        draws = blend_draws(weights, self._seed, self._stream, self._draws, count)
        self._drawn = draws[::-1].tolist()

    def state_dict(self) -> State:
        ended = [
            number
            for number, (weight, running) in enumerate(zip(self._weights, self._running, strict=True))
            if weight > 0 and not running
        ]
        return {"draws": self._draws, "ended": ended, "members": self._state_list()}

    def load_state_dict(self, state: State) -> None:
        draws, ended = count_of(state, "draws"), indices_of(state, "ended", len(self._weights))
        if not any(weight > 0 and number not in ended for number, weight in enumerate(self._weights)):
            raise damaged("ended", ended, "without one dataset that has a weight: if all have ended, none is named")
        self._load_state_list(list_of(state, "members"), "members")
        self._draws = draws
        for number in ended:
            self._running[number] = False


class BlendSourceDataset(SourceMixture):
    """Yields samples from several endless sources in proportion to their weights.

    Which source the k-th sample of a stream comes from is planned (`plan.blend_draws`). The source yields its next
    sample that can be read, is cooked and is not skipped. The weights hold in every stream: a stream whose part of a
    small source is empty in one epoch goes on to the next epoch of the source, in which its part is another, so that
    all streams see all samples of the source in turn.

    Args:
        datasets: Endless: sources with repeat=True, or a cook stage around one.
        weights: One per dataset, finite and at least 0. A dataset of weight 0 is never drawn.
        seed: Of the draws; None is that of the job.
        names: For statistics and messages; None are the paths of the sources.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: The lists differ in length, no weight is positive, or a dataset ends.
        DatasetError: A dataset with a weight has no sample.
    """

    def __init__(
        self,
        datasets: Sequence[SavableDataset[Any]],
        weights: Sequence[float],
        *,
        seed: int | None = None,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(datasets, names=names, worker_config=worker_config)
        if len(weights) != len(self.datasets):
            raise ConfigError(
                f"{len(weights)} weights were given for {len(self.datasets)} datasets: give one for each."
            )
        self.weights = tuple(check_number("the weight", weight) for weight in weights)
        self.seed = self.worker_config.seed_offset if seed is None else seed
        blend_draws(self.weights, 0, 0, 0, 0)  # refuses weights that cannot work
        for dataset, weight, name in zip(self.datasets, self.weights, self.names, strict=True):
            source = source_of(dataset)
            if weight and source is not None:
                _check_endless(source.repeat, source.order.base.num_samples, source.name, name)

    def at_position(self, number: int) -> BlendSourceDataset:
        twin = copy.copy(super().at_position(number))
        twin.seed = mix(self.seed, number)
        return twin

    def config(self) -> dict[str, Any]:
        return {**super().config(), "weights": list(self.weights), "seed": self.seed}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BlendSourceIterator(self, context)


def _check_endless(repeat: bool, num_samples: int, path: str, name: str) -> None:
    if not repeat:
        raise ConfigError(
            f"{path} ends after one epoch (repeat=False), and a blend by weight repeats its datasets indefinitely. "
            "Leave repeat=False out, or use blend_epochized in the metadataset."
        )
    if not num_samples:
        raise DatasetError(
            f"{name} ({path}) has a weight in the blend and no sample: its split part, or its subset, is empty. Give "
            "it the weight 0, leave it out, or choose another split part."
        )


class _BlendSourceIterator(SourceMixtureIterator):
    def __init__(self, dataset: BlendSourceDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._weights = dataset.weights
        self._seed = dataset.seed
        self._feedback = context.feedback
        self._size = GROUP_DRAWS if context.feedback is None else FEEDBACK_DRAWS
        self._draw = 0
        self._window = -1
        self._draws: list[int] = []
        self._following: tuple[int, list[int]] | None = None
        self._read_until = 0
        self._patience = dataset.worker_config.layout.num_streams + 1

    def __next__(self) -> Any:
        window, index = divmod(self._draw, self._size)
        if window != self._window:
            following = self._following
            self._draws = following[1] if following and following[0] == window else self._plan_window(window)
            self._window = window
            self._read_until = index
        if index >= self._read_until:
            self._read_until = min(index + READ_AHEAD, self._size)
            self._read_ahead(self._coming(index, self._draws_ahead))
        number = self._draws[index]
        self._draw += 1
        if self._feedback is not None:
            self._feedback.drew(number)
        for _ in range(self._patience):
            try:
                return self._take(number)
            except StopIteration:  # this stream's part of the epoch is empty, or over
                continue
        raise DatasetError(
            f"{self._names[number]} yielded no sample in {self._patience} epochs, and a blend needs one. Give it the "
            "weight 0, or find out why it is empty."
        )

    def skip(self, count: int) -> int:
        if self._feedback is not None:  # the weights of a draw follow from what earlier samples measured
            return super().skip(count)
        left = count
        while left:
            draws = self._pass(min(left, PLANNED_AT_ONCE))
            left -= len(draws)
            for number, taken in enumerate(np.bincount(draws).tolist()):
                if taken:
                    self._skip(number, taken)
        return count

    def plan(self, count: int) -> Planned:
        if self._feedback is not None:
            return super().plan(count)
        draws = self._pass(count)
        numbers = np.unique(draws).tolist()
        return interleaved(draws, {number: self._plan_member(number, draws) for number in numbers})

    def _plan_member(self, number: int, draws: NDArray[np.int64]) -> Planned:
        return self._plan(number, int(np.count_nonzero(draws == number)))

    def _pass(self, count: int) -> NDArray[np.int64]:
        """Returns the next draws, and moves behind them."""
        draws = blend_draws(self._weights, self._seed, self._stream, self._draw, count)
        self._draw += count
        self._read_until = 0  # what was read ahead is not what comes next
        return draws

    def _coming(self, index: int, count: int) -> list[int]:
        """Returns the next draws, also those of the next window if its weights are known already."""
        coming = self._draws[index : index + count]
        if len(coming) < count and count > READ_AHEAD and self._feedback is None:
            if self._following is None or self._following[0] != self._window + 1:
                self._following = (self._window + 1, self._plan_window(self._window + 1))
            coming += self._following[1][: count - len(coming)]
        return coming

    def _plan_window(self, window: int) -> list[int]:
        """Returns which dataset each draw of a window takes."""
        weights = self._weights if self._feedback is None else self._feedback.weights(window)
        return blend_draws(weights, self._seed, self._stream, window * self._size, self._size).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> State:
        state = {"draw": self._draw, "leaves": self._state_rows()}
        return state if self._feedback is None else {**state, "drawn": self._feedback.drawn()}

    def load_state_dict(self, state: State) -> None:
        draw = count_of(state, "draw")
        self._load_states(list_of(state, "leaves"), "leaves")
        self._draw = draw
        if self._feedback is not None:
            self._feedback.load_drawn(state.get("drawn"))
