"""Applies a function to every element."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_function
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, NOTHING, HookRunner, input_key, rerun
from energon_dali.datasets.planned import Planned
from energon_dali.datasets.restore_key import try_restore
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.samples.base import Key
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class MapDataset(WrapperDataset[Any]):
    """Yields `map_fn(element)` for every element; a generator function may yield none or several.

    An element on which the function raises is dropped and counted as failed; `SkipSample` counts as skipped.

    Args:
        dataset: The dataset below.
        map_fn: The function; picklable if workers run it (functions and classes of `__main__` are sent by value).
        stateless_map_fn: Whether the function's result depends on its argument (and its seeds) alone.
        map_fn_config: Plain values that describe the function, for `config()`.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        worker_config: Default: that of the dataset below.
        stage: Name in statistics and messages. Default: the function's name.
        samples_per_batch: If the function runs ahead of the batches, how many elements make one: its
            `current_batch_index` then follows from its own count. None if batches request the elements.

    Raises:
        ConfigError: map_fn is not callable.
    """

    holds_elements = False

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], Any],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: dict[str, Any] | None = None,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
        stage: str | None = None,
        samples_per_batch: int | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_function("map_fn", map_fn, "from an element to an element")
        self.map_fn = map_fn
        self.stateless_map_fn = stateless_map_fn
        self.map_fn_config = map_fn_config
        self.failure_tolerance = failure_tolerance
        self.stage = stage or str(getattr(map_fn, "__name__", type(map_fn).__name__))
        self.samples_per_batch = samples_per_batch

    @property
    def plan_obstacle(self) -> str:
        """That the function may drop elements, or make several of one."""
        if inspect.isgeneratorfunction(self.map_fn):
            return f"{self.stage} is a generator function: how many samples it makes of one is known when it runs."
        return f"{self.stage} may skip samples, and what follows would then move up."

    def describe(self) -> str:
        return f"MapDataset({self.stage})"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "stage": self.stage, "map_fn": self.map_fn_config or self.stage}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _MapIterator(self, context)

    def can_restore_sample(self) -> bool:
        return self.stateless_map_fn and super().can_restore_sample()

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key of this dataset, made again.

        Raises:
            StateError: The key is not of this dataset, or the function no longer yields that element.
        """
        return rerun(self, self.map_fn, restore_key, self.dataset.restore_sample)

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        inputs = self.dataset.restore_samples([input_key(self, self.map_fn, key) for key in keys])
        return [
            element if isinstance(element, Exception) else try_restore(partial(self._again, element), key)
            for key, element in zip(keys, inputs, strict=True)
        ]

    def _again(self, element: Any, key: Key) -> Any:
        return rerun(self, self.map_fn, key, lambda _: element)


class _MapIterator(WrapperIterator[Any]):
    def __init__(self, dataset: MapDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._runner = HookRunner(dataset, dataset.map_fn, dataset.stage, dataset.failure_tolerance, context)
        self._inner_before: State | None = None

    def __next__(self) -> Any:
        runner = self._runner
        while True:
            if not runner.running:
                if runner.is_generator:
                    self._inner_before = self._inner.state_dict()
                element = next(self._inner)
                runner.load(element, self._inner.last_key(element))
            result = runner.step()
            if result is not NOTHING:
                return result

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        if self._runner.is_generator:
            return super().skip(count, planned)
        skipped = self._inner.skip(count, planned)
        self._runner.index += skipped
        return skipped

    def last_key(self, element: Any) -> Key:
        return self._runner.key

    def state_dict(self) -> State:
        runner = self._runner
        if runner.running:  # within a generator: the state before its element, and the number of outputs so far
            return {"index": runner.index, "inner": self._inner_before, "offset": runner.offset}
        state = {"index": runner.index, "inner": self._inner.state_dict()}
        return {**state, "offset": runner.skip_outputs} if runner.skip_outputs else state

    def load_state_dict(self, state: State) -> None:
        self._runner.index = count_of(state, "index")
        self._runner.skip_outputs = count_of(state, "offset") if "offset" in state else 0
        self._inner.load_state_dict(state_of(state))
