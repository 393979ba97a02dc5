"""What Energon's own dataset wrappers are made of, for programs that derive wrappers of their own from it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from energon_dali.compat.constants import warn_deprecated
from energon_dali.compat.iterated import SavableDataset
from energon_dali.compat.samples import add_sample_restore_key, get_sample_restore_key
from energon_dali.compat.states import FlexState, Savable
from energon_dali.datasets.base import PassThroughDataset
from energon_dali.datasets.stream import StreamContext, StreamIterator
from energon_dali.errors import ConfigError, StateError
from energon_dali.task_encoder.context import sample_context
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


class BaseWrapperDataset(SavableDataset[Any]):
    """A dataset that reads from others. A subclass has `__iter__`, `len_worker` and `config`.

    Args:
        datasets: The dataset, or the datasets, to read from.
        worker_config: The same as theirs.

    Raises:
        ConfigError: The datasets have another configuration.
    """

    def __init__(
        self, datasets: SavableDataset[Any] | Iterable[SavableDataset[Any]], *, worker_config: WorkerConfig
    ) -> None:
        super().__init__(worker_config)
        self.datasets = (datasets,) if isinstance(datasets, SavableDataset) else tuple(datasets)
        for dataset in self.datasets:
            if dataset.worker_config != worker_config:
                raise ConfigError(
                    f"{type(self).__name__} was given {worker_config}, and its dataset has {dataset.worker_config}."
                )

    @property
    def dataset(self) -> SavableDataset[Any]:
        """The dataset that it reads from, if there is one only."""
        dataset: SavableDataset[Any]
        (dataset,) = self.datasets
        return dataset

    def worker_has_samples(self) -> bool:
        return any(dataset.worker_has_samples() for dataset in self.datasets)

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        """Returns the element of a key, made again: that of its only dataset, or (class name, number, key) of several.

        Raises:
            StateError: The key is not of this dataset.
        """
        if len(self.datasets) == 1:
            return self.dataset.restore_sample(restore_key)
        name, number, *rest = restore_key
        if name != type(self).__name__:
            raise StateError(f"{restore_key!r} is not a key of {type(self).__name__}.")
        return add_sample_restore_key(self.datasets[number].restore_sample(tuple(rest)), number, src=self)

    def save_state(self) -> dict[str, Any]:
        """Returns the own fields, and the states of the datasets that it reads from."""
        return FlexState(datasets=[dataset.save_state() for dataset in self.datasets], **super().save_state())

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continues at a state.

        Raises:
            StateError: It is of another dataset.
        """
        if len(state.get("datasets", ())) != len(self.datasets):
            raise StateError(f"This is not a state of {type(self).__name__}.")
        for dataset, saved in zip(self.datasets, state["datasets"], strict=True):
            dataset.restore_state(saved)
        super().restore_state(state)

    def reset_state_deep(self) -> None:
        """Starts again, with the datasets that it reads from."""
        for dataset in self.datasets:
            dataset.reset_state_deep()
        self.reset_state_own()


class SampleIndex(Savable):
    """Counts the samples of a stage, and gives hooks the number of the sample that they work on.

    Args:
        worker_config: The job.
        src: The dataset that it belongs to.
    """

    def __init__(self, worker_config: WorkerConfig, *, src: Any) -> None:
        self.worker_config = worker_config
        self.current_idx = 0
        self.src = src

    def get_next(self) -> int:
        """Returns the next number."""
        self.current_idx += 1
        return self.current_idx - 1

    @contextmanager
    def ctx(self, sample_idx: int | None = None) -> Iterator[int]:
        """Makes hooks inside see a number; None takes the next one.

        Raises:
            ConfigError: It is used outside of the iteration of a dataset.
        """
        number = self.get_next() if sample_idx is None else sample_idx
        config = self.worker_config
        index = number * config.layout.num_streams + config.global_worker_id()
        with sample_context(index, config.seed_offset):
            yield number

    def iter_ctx(self, it: Iterable[T], sample_idx: int | None = None) -> Generator[tuple[int, T], None, None]:
        """Yields (number, element) pairs; each element is made with its number visible to hooks."""
        elements = iter(it)
        while True:
            with self.ctx(sample_idx) as number:
                try:
                    element = next(elements)
                except StopIteration:
                    return
            yield number, element

    def save_state(self) -> int:
        return self.current_idx

    def restore_state(self, state: int | None) -> None:
        self.current_idx = state or 0


class SavableSampleBuffer(BaseWrapperDataset):
    """A list of samples whose state is their restore keys; a restored buffer makes them again in `worker_start`.

    Args:
        dataset: Where they come from.
        worker_config: The job.
    """

    _savable_fields = ("_restore_keys",)

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.reset_state_own()

    def reset_state_own(self) -> None:
        """Removes all samples."""
        self._buffer: list[Any] = []
        self._restore_keys: list[Any] = []
        self._pending = False

    def worker_start(self) -> None:
        """Makes the samples of a restored state again. Call it where iteration begins."""
        if self._pending:
            self._pending = False
            self._buffer = [self.restore_sample(key) for key in self._restore_keys]

    def append(self, sample: T) -> T:
        """Adds a sample, and returns it."""
        self._buffer.append(sample)
        self._restore_keys.append(get_sample_restore_key(sample))
        return sample

    def extend(self, samples: Sequence[Any], restore_keys: Sequence[Any] | None = None) -> None:
        """Adds samples, with their keys or those given."""
        self._buffer.extend(samples)
        self._restore_keys.extend(map(get_sample_restore_key, samples) if restore_keys is None else restore_keys)

    def append_iter(self) -> Iterator[Any]:
        """Adds the samples of the dataset, and yields each."""
        for sample in self.dataset:
            yield self.append(sample)

    def pop(self, index: int = -1) -> Any:
        """Removes a sample, and returns it."""
        self._restore_keys.pop(index)
        return self._buffer.pop(index)

    def flush(self) -> tuple[list[Any], tuple[Any, ...]]:
        """Removes all samples, and returns them with their keys."""
        flushed = list(self._buffer), tuple(self._restore_keys)
        self.clear()
        return flushed

    def clear(self) -> None:
        """Removes all samples."""
        self._buffer.clear()
        self._restore_keys.clear()

    @property
    def buffer(self) -> list[Any]:
        """The samples."""
        return self._buffer

    def restore_key(self) -> tuple[Any, ...]:
        """Returns the keys of the samples."""
        return tuple(self._restore_keys)

    def restore_samples(self, keys: Sequence[Any]) -> Any:
        """Returns (the keys, the samples) of keys, made again."""
        samples = [self.restore_sample(key) for key in keys]
        return tuple(map(get_sample_restore_key, samples)), samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._buffer)

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self._buffer[index] = value
        several = isinstance(index, slice)
        self._restore_keys[index] = map(get_sample_restore_key, value) if several else get_sample_restore_key(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._buffer[index]
        del self._restore_keys[index]

    def __len__(self) -> int:
        return len(self._restore_keys)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return len(self._restore_keys)

    def save_state(self) -> dict[str, Any]:
        """Returns the keys of the samples; the dataset's state is not part of it."""
        return {"__class__": type(self).__name__, "_restore_keys": list(self._restore_keys)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Takes over the keys of a state.

        Raises:
            StateError: It is of another class.
        """
        if state.get("__class__") != type(self).__name__:
            raise StateError(f"This is not a state of {type(self).__name__}.")
        self._buffer, self._restore_keys, self._pending = [], list(state["_restore_keys"]), True

    def config(self) -> dict[str, Any]:
        return {"type": type(self).__qualname__, "dataset": self.dataset.config()}


class WatchdogDataset(PassThroughDataset[Any]):
    """Yields the elements of the dataset below. Loaders have a watchdog: `get_loader(watchdog_timeout_seconds=...)`.

    Args:
        dataset: The dataset below.
        worker_config: The job.
        timeout_seconds: Has no effect here.
        initial_timeout_seconds: Has no effect here.
        fail_on_timeout: Has no effect here.
    """

    shown_in_config = False

    def __init__(
        self,
        dataset: SavableDataset[Any],
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if timeout_seconds is not None:
            warn_deprecated(
                "WatchdogDataset has no effect: give watchdog_timeout_seconds to get_loader or get_savable_loader."
            )

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return self.dataset.open(context)
