"""Draws elements from several datasets in proportion to their weights, also within each batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from typing_extensions import Self

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_number
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE
from energon_dali.datasets.mixing.mixture_dataset import MixtureDataset, MixtureIterator, numbered
from energon_dali.datasets.stream import Move, State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.plan.mixtures import GROUP_DRAWS, weighted_draws
from energon_dali.shards.documents.state_entries import count_of, damaged, indices_of, list_of
from energon_dali.task_encoder.stateless import failure_tolerance, is_stateless, stateless
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

    def _pass(self, count: int, move: Move) -> int:
        passed = 0
        while passed < count:
            if not self._drawn:
                self._draw()
            number = self._drawn.pop()
            self._draws += 1
            if move(number, 1):
                passed += 1
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
        draws = weighted_draws(weights, self._seed, self._stream, self._draws, count)
        self._drawn = draws[::-1].tolist()

    def state_dict(self) -> State:
        ended = [
            number
            for number, (weight, running) in enumerate(zip(self._weights, self._running, strict=True))
            if weight > 0 and not running
        ]
        return {"draws": self._draws, "ended": ended, "members": self._member_states()}

    def load_state_dict(self, state: State) -> None:
        draws, ended = count_of(state, "draws"), indices_of(state, "ended", len(self._weights))
        if not any(weight > 0 and number not in ended for number, weight in enumerate(self._weights)):
            raise damaged("ended", ended, "without one dataset that has a weight: if all have ended, none is named")
        self._load_member_states(list_of(state, "members"), "members")
        self._draws = draws
        for number in ended:
            self._running[number] = False


@stateless
def keep_apart(batches: list[Any]) -> list[Any]:
    """Returns the list itself, so that a mixed batch is a list of batches."""
    return batches


class MixBatchDataset(BatchDataset):
    """Yields `batch_mix_fn(list of batch_size elements)`; each element is drawn by weight from several datasets.

    The datasets usually yield batches of one sample (batch_size=1), so that `batch_size` of them make one batch.

    Args:
        *dataset_weights: Pairs (dataset, weight), as for BlendDataset.
        batch_size: Elements per mixed batch, at least 1.
        batch_mix_fn: Makes one batch of a list of elements: `homogeneous_concat_mix` if all datasets yield one type, or
            your own function for several types. May raise SkipSample, or be a generator function. The default returns
            the list. Mark it @stateless to restore single batches.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: batch_size is less than 1, or the pairs cannot be blended.
    """

    @explain_call
    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset[Any], float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = keep_apart,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendDataset(*dataset_weights, worker_config=worker_config)
        super().__init__(
            blend,
            batch_size,
            batch_mix_fn,
            batcher_stateless=is_stateless(batch_mix_fn),
            batcher_config={"mix": getattr(batch_mix_fn, "__qualname__", type(batch_mix_fn).__qualname__)},
            failure_tolerance=failure_tolerance(batch_mix_fn, DEFAULT_FAILURE_TOLERANCE),
        )
