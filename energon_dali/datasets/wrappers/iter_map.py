"""Applies a function to the iterator over the elements of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from energon_dali.calls import check_function, explain_call
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy, is_of_user, own_copy
from energon_dali.datasets.restore_key import expect_name
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.errors import FatalSampleError, SkipSample, StateError
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards.documents.state_entries import count_of, entry_of, state_of
from energon_dali.task_encoder.context import sample_context
from energon_dali.task_encoder.stateless import failure_tolerance
from energon_dali.worker_config import WorkerConfig

IterMap = Callable[[Iterator[Any]], Iterable[Any]]


def same_length(length: int) -> int:
    """Returns the length itself."""
    return length


class IterMapDataset(WrapperDataset[Any]):
    """Yields what `iter_map_fn(iterator over the elements of an epoch)` yields; it is called once per epoch.

    Every state restores exactly. How much a restore reads again depends on the function:

    * `stateless_iter_fn=True` promises that every output depends only on the elements taken since the previous output
      (or, if none was taken, on the same elements as the previous one). These elements are read again.
    * A function that returns an iterator with `state_dict()` and `load_state_dict(state)` (plain values) saves itself,
      and nothing is read again. Its state must hold the elements that it took and did not yield yet.
    * Any other function runs again from the beginning of the epoch, and its outputs so far are dropped. On endless data
      that takes longer the later the state is: put an EpochizeDataset below, or use one of the other two.

    If the function raises, the elements that it held are lost and counted, and it is called again on the rest of the
    epoch.

    Args:
        dataset: The dataset below.
        iter_map_fn: Takes an iterator and returns one; picklable if workers run it.
        len_map_fn: Returns the number of outputs for a number of elements.
        stateless_iter_fn: See above.
        iter_map_fn_config: Plain values that describe the function, or a function that returns them.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: iter_map_fn is not callable.
    """

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        iter_map_fn: IterMap,
        *,
        len_map_fn: Callable[[int], int] = same_length,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_function("iter_map_fn", iter_map_fn, "from an iterator of elements to one of others")
        self.iter_map_fn = iter_map_fn
        self.len_map_fn = len_map_fn
        self.stateless_iter_fn = stateless_iter_fn
        self.iter_map_fn_config = iter_map_fn_config
        self.stage = str(getattr(iter_map_fn, "__name__", type(iter_map_fn).__name__))

    def describe(self) -> str:
        return f"IterMapDataset({self.stage})"

    def config(self) -> dict[str, Any]:
        own = self.iter_map_fn_config
        return {**super().config(), "iter_map_fn": (own() if callable(own) else own) or self.stage}

    def len_stream(self, stream: int) -> int:
        return self.len_map_fn(self.dataset.len_stream(stream))

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _IterMapIterator(self, context)

    def can_restore_sample(self) -> bool:
        return self.stateless_iter_fn and super().can_restore_sample()

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the element of a key (name, number of the output, number among those of its elements, *keys of the
        elements that it was made of), made again.

        Raises:
            StateError: The key is not of this dataset, or the function no longer yields that element.
        """
        restore_key = expect_name(restore_key, "IterMapDataset", 2)
        index, offset, *keys = restore_key[1:]
        elements = iter([self.dataset.restore_sample(key) for key in keys])
        with sample_context(index, self.hook_seed):
            for number, output in enumerate(self.iter_map_fn(elements)):
                if number == offset:
                    return set_restore_key(output, restore_key)
        raise StateError(
            f"{self.describe()} yielded fewer than {offset + 1} outputs when it ran again for {restore_key!r}. It is "
            "declared stateless_iter_fn=True, so it must yield the same outputs for the same elements."
        )


class _Elements(Iterator[Any]):
    """The elements of one epoch, as the function sees them. It ends with the epoch and stays ended."""

    def __init__(self, inner: StreamIterator[Any], keep_start: bool) -> None:
        self.inner = inner
        self._keep_start = keep_start
        self.ended = False
        self.last: Any = None
        """The last element that was taken."""
        self.keys: list[Key] = []
        """Keys of the elements taken since the output before the last."""
        self.start: State | None = None
        """State before the first of them."""
        self.taken = False
        """Whether one was taken since the last output."""

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        if not self.taken:
            self.taken = True
            self.keys = []
            if self._keep_start:
                self.start = self.inner.state_dict()
        try:
            self.last = next(self.inner)
        except StopIteration:
            self.ended = True
            raise
        self.keys.append(self.inner.last_key(self.last))
        return self.last


class _IterMapIterator(WrapperIterator[Any]):
    def __init__(self, dataset: IterMapDataset, context: StreamContext) -> None:
        config = dataset.worker_config
        super().__init__(dataset.dataset.open(context))
        self._dataset = dataset
        tolerance = failure_tolerance(dataset.iter_map_fn, DEFAULT_FAILURE_TOLERANCE)
        self._policy = FailurePolicy(dataset.stage, tolerance, context, config)
        self._clock = context.metrics.clock(dataset.stage)
        self._clock.is_hook |= is_of_user(dataset.iter_map_fn)
        self._stream, self._num_streams, self._seed = context.stream, config.layout.num_streams, dataset.hook_seed
        self._index = 0
        """Outputs so far."""
        self._offset = 0
        """Outputs since the last element was taken."""
        self._elements: _Elements | None = None
        self._outputs: Iterator[Any] | None = None
        self._epoch_start: State | None = None
        self._epoch_outputs = 0
        """Outputs of this epoch; with a stateless function, those since its last elements were taken."""
        self._skip = 0
        self._own: State | None = None
        self._fresh = True  # whether the function has yielded nothing since it was called
        self._key: Key = ()

    def __next__(self) -> Any:
        while True:
            elements = self._elements or self._begin()
            index = self._index * self._num_streams + self._stream
            outer = self._clock.begin()
            try:
                with sample_context(index, self._seed):
                    if self._outputs is None:
                        self._fresh = True
                        self._outputs = iter(self._dataset.iter_map_fn(elements))
                        self._load_own()
                    output = next(self._outputs)
            except StopIteration:
                self._elements = self._outputs = None
                self._epoch_outputs = self._skip = 0
                raise
            except Exception as error:
                self._outputs = None
                if isinstance(error, SkipSample) and self._fresh and not elements.taken:
                    raise FatalSampleError(
                        f"{self._dataset.stage} raised SkipSample before it took an element, so there is nothing to "
                        "skip, and it would be called indefinitely. Take an element first, or return without outputs."
                    ) from error
                elements.taken = False  # the failed elements belong to no output
                self._policy.on_failure(error, elements.last)
                continue
            finally:
                self._clock.end(outer)
            self._policy.on_success()
            self._fresh = False
            self._offset = 0 if elements.taken else self._offset + 1
            self._epoch_outputs = self._offset + 1 if self._dataset.stateless_iter_fn else self._epoch_outputs + 1
            elements.taken = False
            self._index += 1
            if self._skip:
                self._skip -= 1
                continue
            self._key = ("IterMapDataset", index, self._offset, *elements.keys)
            return set_restore_key(own_copy(output), self._key)

    def _begin(self) -> _Elements:
        self._epoch_start = self._inner.state_dict()
        self._elements = _Elements(self._inner, self._dataset.stateless_iter_fn)
        return self._elements

    def _load_own(self) -> None:
        if self._own is not None:
            own, self._own = self._own, None
            self._outputs.load_state_dict(own)  # type: ignore[union-attr]

    def last_key(self, element: Any) -> Key:
        return self._key

    def state_dict(self) -> State:
        state: State = {"index": self._index + self._skip}
        if self._skip or self._own is not None:  # restored, and not continued yet
            return {**state, "outputs": self._skip, "own": self._own, "inner": self._epoch_start}
        if self._elements is None or not self._epoch_outputs:
            return {**state, "outputs": 0, "own": None, "inner": self._inner.state_dict()}
        if hasattr(self._outputs, "state_dict"):
            own = self._outputs.state_dict()  # type: ignore[union-attr]
            return {**state, "outputs": 0, "own": own, "inner": self._inner.state_dict()}
        start = self._elements.start if self._dataset.stateless_iter_fn else self._epoch_start
        return {**state, "outputs": self._epoch_outputs, "own": None, "inner": start}

    def load_state_dict(self, state: State) -> None:
        index = count_of(state, "index")
        self._skip, self._own = count_of(state, "outputs", index), entry_of(state, "own")
        self._index = index - self._skip  # the outputs that are dropped count again
        self._epoch_start = state_of(state)
        self._inner.load_state_dict(self._epoch_start)

    def close(self) -> None:
        close = getattr(self._outputs, "close", None)
        if close is not None:
            close()
        super().close()
