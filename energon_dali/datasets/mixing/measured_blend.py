"""Measures encoded samples, so that the weights of the blend below hold in that unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.mixing.share_feedback import ShareFeedback
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.errors import ConfigError
from energon_dali.plan.mixtures import BlendPlan
from energon_dali.shards.documents.state_entries import state_of
from energon_dali.task_encoder.token_counts import count_tokens

BlendBy = str | Callable[[Any], float]


class MeasuredBlendDataset(PassThroughDataset[Any]):
    """Yields the encoded samples below, and reports the size of each one to the blend below.

    It follows the hook that encodes samples and precedes packing and batching, where every sample belongs to the last
    draw of the blend. A sample that cannot be measured is dropped and counted.

    Args:
        dataset: Encode stages around a `SourceDataset` whose plan is a blend.
        blend_by: "tokens" counts text and vision tokens (`count_tokens`). Or a function from an encoded sample to a
            finite number of at least 0.

    Raises:
        ConfigError: There is no blend by weight below, or blend_by is neither "tokens" nor a function.
    """

    def __init__(self, dataset: SavableDataset[Any], blend_by: BlendBy) -> None:
        super().__init__(dataset)
        if blend_by != "tokens" and not callable(blend_by):
            raise ConfigError(f'blend_by={blend_by!r} is not known: give "tokens", or a function of an encoded sample.')
        self.blend_by = blend_by
        _ = self.blend

    @property
    def blend(self) -> SourceDataset:
        """Reads the blend whose weights hold in this unit.

        Raises:
            ConfigError: There is none.
        """
        dataset = self.dataset
        while not (isinstance(dataset, SourceDataset) and isinstance(dataset.plan, BlendPlan)):
            if len(dataset.children) != 1:
                raise ConfigError(
                    f"blend_by={self.blend_by!r} needs several datasets that are blended by weight, and this is "
                    f"{dataset.describe()}. Give a metadataset with `blend`, or leave blend_by out."
                )
            (dataset,) = dataset.children
        return dataset

    def describe(self) -> str:
        return f"MeasuredBlendDataset({self._unit})"

    @property
    def _unit(self) -> str:
        return self.blend_by if isinstance(self.blend_by, str) else getattr(self.blend_by, "__qualname__", "function")

    def config(self) -> dict[str, Any]:
        return {**super().config(), "blend_by": self._unit}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _MeasuredIterator(self, context)


class _MeasuredIterator(WrapperIterator[Any]):
    def __init__(self, dataset: MeasuredBlendDataset, context: StreamContext) -> None:
        blend = dataset.blend
        assert isinstance(blend.plan, BlendPlan)
        self._feedback = ShareFeedback(blend.plan.weights)
        super().__init__(dataset.dataset.open(replace(context, feedback=self._feedback)))
        self._measure = count_tokens if isinstance(dataset.blend_by, str) else dataset.blend_by
        self._counters = [f"blend.units.{name}" for name in blend.names]
        self._fractions = [0.0] * len(blend.names)
        self._metrics = context.metrics
        self._policy = FailurePolicy("blend_by", DEFAULT_FAILURE_TOLERANCE, context, dataset.worker_config)

    def __next__(self) -> Any:
        while True:
            sample = next(self._inner)
            try:
                units = _checked(self._measure(sample))
            except Exception as error:
                self._policy.on_failure(error, sample)
                continue
            self._policy.on_success()
            self._feedback.measured(units)
            self._count(self._feedback.source, units)
            return sample

    def _count(self, source: int, units: float) -> None:
        whole = self._fractions[source] + units
        self._fractions[source] = whole - int(whole)
        self._metrics.count(self._counters[source], int(whole))

    def state_dict(self) -> State:
        return {"feedback": self._feedback.state_dict(), "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._feedback.load_state_dict(state_of(state, "feedback"))
        self._inner.load_state_dict(state_of(state))


def _checked(units: Any) -> float:
    """Returns the size of a sample as a plain int or float, since states hold no other numbers."""
    number = units if type(units) in (int, float) else float(units)
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"blend_by returned {units!r} for a sample: it must return a finite number of at least 0.")
    return number
