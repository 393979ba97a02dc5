"""Groups consecutive elements into batches of one size, and has what all grouping datasets have in common."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.calls import check_count, check_function, explain_call
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, NOTHING, HookRunner, rerun
from energon_dali.datasets.restore_key import expect_name, key_from_json, restore_groups, try_restore
from energon_dali.datasets.step_entries import units_of_key
from energon_dali.datasets.stream import Planned, State, StreamContext, StreamIterator, WrapperIterator, joined
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import SPARES, attempts_of
from energon_dali.samples.base import Key, add_attribute, set_restore_key
from energon_dali.shards.documents.state_entries import count_of, flag_of, state_of
from energon_dali.task_encoder.context import batch_context, sample_context
from energon_dali.worker_config import WorkerConfig

_NUMBERED = ("MapDataset", "BatchDataset", "GroupBatchDataset", "PackingDataset")
"""Datasets whose keys begin with the number of their input."""


class GroupingDataset(WrapperDataset[Any]):
    """A dataset whose hook makes one element of a list of elements.

    Args:
        dataset: The dataset below.
        hook: Makes an element of a list; a generator function may yield none or several.
        hook_stateless: Whether its result depends on its argument (and its seeds) alone.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: The hook is not callable.
    """

    hook_name = "batcher"
    """Name of the hook among the arguments."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        hook: Callable[[list[Any]], Any],
        *,
        hook_stateless: bool,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_function(type(self).hook_name, hook, "from a list of elements to one")
        self.hook = hook
        self.hook_stateless = hook_stateless
        self.failure_tolerance = failure_tolerance

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What decides which elements are grouped, as plain values, by name."""

    def config(self) -> dict[str, Any]:
        return {**super().config(), **self.options}

    def can_restore_sample(self) -> bool:
        return self.hook_stateless and super().can_restore_sample()

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key of this dataset, made again.

        Raises:
            StateError: The key is not of this dataset, or the hook no longer yields that element.
            DecodeError: A sample cannot be decoded.
        """
        return rerun(self, self.hook, restore_key, lambda keys: [self.restore_part(key) for key in keys])

    def restore_part(self, key: Key) -> Any:
        """Returns one element of the list that the hook receives, made again.

        Raises:
            StateError: The key is not of the dataset below.
        """
        return self.dataset.restore_sample(key)

    def restore_parts(self, keys: Sequence[Key]) -> list[Any]:
        """Returns several elements of the list that the hook receives; errors in place of those that are lost."""
        return [try_restore(self.restore_part, key) for key in keys]


class GroupingIterator(WrapperIterator[Any]):
    """Collects a list of elements, runs the hook on it, and yields what the hook makes of it.

    Args:
        dataset: Its hook.
        stage: Name of the hook in statistics and messages.
        context: The stream.
    """

    def __init__(self, dataset: GroupingDataset, stage: str, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._runner = HookRunner(dataset, dataset.hook, stage, dataset.failure_tolerance, context)
        self._grouping = dataset
        self._current: list[Key] = []
        """Keys of the list that the hook is working on."""
        self._saved: State | None = None
        """A restored state whose elements were not read again yet."""

    @abstractmethod
    def _collect(self) -> tuple[list[Any], list[Key]]:
        """Returns the next list and the keys of its elements; an empty list if all of them failed.

        Raises:
            StopIteration: The epoch is over.
        """

    def _refill(self, state: State) -> None:
        """Reads again what was held when the state was saved."""

    def __next__(self) -> Any:
        if self._saved is not None:
            self._refill(self._saved)
            self._saved = None
        runner = self._runner
        while True:
            if not runner.running:
                elements, self._current = self._collect()
                if not elements:
                    continue
                runner.load(elements, tuple(self._current))
            made = runner.step()
            if not runner.running:
                self._current = []
            if made is not NOTHING:
                return made

    def _refill_current(self, state: State, restore: Callable[[Sequence[Key]], list[Any]]) -> None:
        """Continues the hook on the list that it was working on when the state was saved."""
        self._runner.index = state["index"]
        if not state["current"]:
            return
        (pairs,) = restore_groups(restore, [state["current"]], self._grouping.worker_config.restore_error_handler)
        self._current = [key for key, _ in pairs]
        if pairs:
            self._runner.load([element for _, element in pairs], tuple(self._current))
            self._runner.skip_outputs = state["offset"]

    def last_key(self, element: Any) -> Key:
        return self._runner.key


class BatchDataset(GroupingDataset):
    """Yields `batcher(list of batch_size elements)`; the last batch of an epoch may be smaller.

    Args:
        dataset: The dataset below.
        batch_size: Elements per batch, at least 1.
        batcher: Makes a batch of a list; a generator function may yield none or several.
        batcher_stateless: Whether its result depends on its argument (and its seeds) alone.
        batcher_config: Plain values that describe it, for `config()`.
        drop_last: Drop the smaller batch at the end of an epoch.
        failure_tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: batch_size is not a whole number of at least 1, or the batcher is not callable.
    """

    holds_elements = False

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: dict[str, Any] | None = None,
        drop_last: bool = False,
        failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batcher,
            hook_stateless=batcher_stateless,
            failure_tolerance=failure_tolerance,
            worker_config=worker_config,
        )
        self.batch_size = check_count("batch_size", batch_size, "leave the dataset out for single samples")
        self.batcher_config = batcher_config
        self.drop_last = drop_last

    @property
    def plan_obstacle(self) -> str | None:
        """None for the batch functions of this package, which make one batch of each list."""
        function = getattr(self.hook, "__func__", self.hook)
        if inspect.isgeneratorfunction(function):
            return "batch is a generator function: how many batches it makes of one list is known when it runs."
        own = str(getattr(function, "__module__", "")).startswith(
            ("energon_dali.task_encoder.", "energon_dali.samples.")
        )
        return None if own else "batch may skip batches, and what follows would then move up."

    def describe(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, drop_last={self.drop_last})"

    @property
    def options(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "drop_last": self.drop_last, "batcher": self.batcher_config}

    def len_stream(self, stream: int) -> int:
        elements = self.dataset.len_stream(stream)
        return elements // self.batch_size if self.drop_last else -(-elements // self.batch_size)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BatchIterator(self, context)


class _BatchIterator(GroupingIterator):
    def __init__(self, dataset: BatchDataset, context: StreamContext) -> None:
        super().__init__(dataset, "batch", context)
        self._size = dataset.batch_size
        self._drop_last = dataset.drop_last
        self._seed = dataset.hook_seed
        self._ended = False
        self._before: State = {}

    def _collect(self) -> tuple[list[Any], list[Key]]:
        if self._runner.is_generator:  # a state while it runs is the state before its batch
            self._before = {"ended": self._ended, "inner": self._inner.state_dict()}
        if self._ended:
            self._ended = False
            raise StopIteration
        samples: list[Any] = []
        keys: list[Key] = []
        with sample_context(self._runner.global_index, self._seed):  # what hooks below see as current_batch_index
            for _ in range(self._size):
                try:
                    sample = next(self._inner)
                except StopIteration:
                    if not samples or self._drop_last:
                        raise
                    self._ended = True
                    break
                samples.append(sample)
                keys.append(self._inner.last_key(sample))
        return samples, keys

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        if self._runner.is_generator:
            return super().skip(count, planned)
        if self._ended and count:
            self._ended = False
            return 0
        parts: list[Planned] | None = None if planned is None else []
        elements = self._inner.skip(count * self._size, parts)
        batches = elements // self._size if self._drop_last else -(-elements // self._size)
        if planned is not None and parts is not None:
            planned.append(joined(parts).grouped(self._size, drop_last=self._drop_last))
        self._runner.index += batches
        # A smaller batch ended the epoch. If it was the last one wanted, the caller still has to learn of the end.
        self._ended = batches == count and elements < count * self._size
        return batches

    def state_dict(self) -> State:
        runner = self._runner
        if runner.running:
            return {"index": runner.index, **self._before, "offset": runner.offset}
        state = {"index": runner.index, "ended": self._ended, "inner": self._inner.state_dict()}
        return {**state, "offset": runner.skip_outputs} if runner.skip_outputs else state

    def load_state_dict(self, state: State) -> None:
        self._runner.index = count_of(state, "index")
        self._runner.skip_outputs = count_of(state, "offset") if "offset" in state else 0
        self._ended = flag_of(state, "ended")
        self._inner.load_state_dict(state_of(state))


class BatchCountDataset(WrapperDataset[Any]):
    """Yields the elements of a pipeline, and gives the hooks below the number of the element that they work on.

    They read it as `current_batch_index`: the number of elements that this stream of the pipeline yielded before, times
    the number of streams, plus the number of the stream. If a restore key does not begin with this number, it becomes
    ("BatchCountDataset", number, *key).

    Args:
        dataset: The stages of a pipeline, up to its batches.
    """

    counts_batches = True
    plan_obstacle = None
    shown_in_config = False

    def describe(self) -> str:
        return self.dataset.describe()  # invisible in a tree, since it does nothing to an element

    def __str__(self) -> str:
        return str(self.dataset)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _CountIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key, made again; its hooks see the same `current_batch_index` as before.

        Raises:
            StateError: The key is not of this dataset.
        """
        number, key = _divided(restore_key)
        if number is None:
            return self.dataset.restore_sample(key)
        with batch_context(number):
            return set_restore_key(self.dataset.restore_sample(key), _joined(number, key))


def _divided(key: Any) -> tuple[int | None, Key]:
    """Returns (the number of the batch, or None if no hook reads it; the key of the dataset below)."""
    if not isinstance(key, (tuple, list)):
        return None, key  # the dataset below refuses it
    if key and key[0] == "BatchCountDataset":
        key = expect_name(key, "BatchCountDataset")
        return key[1], key[2:]
    return _own_number(key), key_from_json(key)


def _joined(number: int, key: Key) -> Key:
    """Returns the key of an element from its number and the key of the dataset below."""
    return key if _own_number(key) in (number, None) else ("BatchCountDataset", number, *key)


def _own_number(key: Any) -> int | None:
    """Returns the number that a key begins with; None for samples that no hook has seen."""
    return key[1] if len(key) > 1 and key[0] in _NUMBERED and isinstance(key[1], int) else None


class _CountIterator(WrapperIterator[Any]):
    def __init__(self, dataset: BatchCountDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._stream = context.stream
        self._num_streams = dataset.worker_config.layout.num_streams
        self._batches = dataset.global_batches
        self._epoch = 0
        self._count = 0
        self._key: Key = ()

    def __next__(self) -> Any:
        if self._batches is not None:
            return self._next_of_step(self._batches)
        number = self._count * self._num_streams + self._stream
        with batch_context(number):
            element = next(self._inner)
        self._count += 1
        key = self._inner.last_key(element)
        self._key = _joined(number, key)
        return element if self._key is key else set_restore_key(element, self._key)

    def _next_of_step(self, batches: GlobalBatchPlan) -> Any:
        """Returns the next micro-batch of a step, marked with its place in it."""
        if self._count == batches.micro_batches_of_stream(self._stream, self._epoch):
            self._epoch, self._count = self._epoch + 1, 0
            next(self._inner)  # raises StopIteration
            raise AssertionError("an epoch has more micro-batches than its plan")
        step, number = batches.place_of(self._stream, self._epoch, self._count)
        with batch_context(step.number):
            element = next(self._inner)
        self._count += 1
        self._key = self._inner.last_key(element)
        add_attribute(element, "step", step.number)
        add_attribute(element, "micro_batch", number)
        add_attribute(element, "is_last_of_step", number + 1 == step.micro_batches)
        add_attribute(element, "num_units", sum(attempts_of(unit) <= SPARES for unit in units_of_key(self._key)))
        return element

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        skipped = self._inner.skip(count, planned)
        self._count += skipped
        return skipped

    def last_key(self, element: Any) -> Key:
        return self._key

    def state_dict(self) -> State:
        return {"given": self._count, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._count = count_of(state, "given")
        self._inner.load_state_dict(state_of(state))
