"""Keeps the elements that a function selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_function
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.task_encoder.context import sample_context
from energon_dali.task_encoder.stateless import failure_tolerance
from energon_dali.worker_config import WorkerConfig


class FilterDataset(PassThroughDataset[Any]):
    """Yields the elements for which `filter_fn(element)` is true; the others are counted as skipped.

    An element on which the function raises is dropped and counted as failed; `SkipSample` counts as skipped.

    Args:
        dataset: The dataset below.
        filter_fn: Returns whether to keep an element; picklable if workers run it.
        filter_fn_config: Plain values that describe the function, for `config()`.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: filter_fn is not callable.
    """

    holds_elements = False

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        filter_fn: Callable[[Any], bool],
        filter_fn_config: dict[str, Any] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_function("filter_fn", filter_fn, "from an element to whether to keep it")
        self.filter_fn = filter_fn
        self.filter_fn_config = filter_fn_config
        self.stage = str(getattr(filter_fn, "__name__", type(filter_fn).__name__))

    def describe(self) -> str:
        return f"FilterDataset({self.stage})"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "filter_fn": self.filter_fn_config or self.stage}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _FilterIterator(self, context)


class _FilterIterator(WrapperIterator[Any]):
    def __init__(self, dataset: FilterDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        config = dataset.worker_config
        self._wanted = dataset.filter_fn
        tolerance = failure_tolerance(dataset.filter_fn, DEFAULT_FAILURE_TOLERANCE)
        self._policy = FailurePolicy(dataset.stage, tolerance, context, config)
        self._stream, self._num_streams = context.stream, config.layout.num_streams
        self._seed = dataset.hook_seed
        self._seen = 0

    def __next__(self) -> Any:
        while True:
            element = next(self._inner)
            index = self._seen * self._num_streams + self._stream
            self._seen += 1
            try:
                with sample_context(index, self._seed):
                    wanted = self._wanted(element)
            except Exception as error:
                self._policy.on_failure(error, element)
                continue
            self._policy.on_success()
            if wanted:
                return element
            self._policy.on_skip()

    def state_dict(self) -> State:
        return {"seen": self._seen, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._seen = count_of(state, "seen")
        self._inner.load_state_dict(state_of(state))
