"""What hooks read of their work: the stream that runs, and the sample and batch that are being made, in this thread.

Samples and batches are stacks, because each stage pulls from the one before. While a dataset is opened, what puts
datasets together for the build hooks of Energon is known here as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol

from energon_dali.errors import ConfigError
from energon_dali.worker_config import RUNNING, WorkerConfig


class _Stack(threading.local):
    """The samples and batches that are in work in a thread, outermost stage first."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.batches: list[int] = []


_STACK = _Stack()


class running_stream:  # noqa: N801 - read as a statement: with running_stream(config, stream)
    """Makes `WorkerConfig.rank_worker_id` and the like answer for a stream, as a `with` block.

    Args:
        config: The job.
        stream: Number of the stream.
    """

    __slots__ = ("_before", "_config", "_stream")

    def __init__(self, config: WorkerConfig, stream: int) -> None:
        self._config = config
        self._stream = stream

    def __enter__(self) -> None:
        self._before = RUNNING.stream, RUNNING.config
        RUNNING.stream, RUNNING.config = self._stream, self._config

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        RUNNING.stream, RUNNING.config = self._before


class sample_context:  # noqa: N801 - read as a statement: with sample_context(index, seed)
    """Starts and ends the work on a sample, as a `with` block.

    It is a class because it runs for every sample and costs a third of a generator function.

    Args:
        index: Number of the stage's input, over all streams.
        seed: Seed of the job.
    """

    __slots__ = ("_entry",)

    def __init__(self, index: int, seed: int) -> None:
        self._entry = (index, seed)

    def __enter__(self) -> None:
        _STACK.entries.append(self._entry)

    def __exit__(self, *_: object) -> None:
        _STACK.entries.pop()


def call_in_context(index: int, seed: int, function: Callable[[Any], Any], argument: Any) -> Any:
    """Returns function(argument), called in a `sample_context`, in a third of the time that the `with` block takes.

    Args:
        index: As of `sample_context`.
        seed: As of `sample_context`.
        function: What to call.
        argument: Its argument.

    Raises:
        Exception: Whatever the function raises.
    """
    entries = _STACK.entries
    entries.append((index, seed))
    try:
        return function(argument)
    finally:
        entries.pop()


def call_in_step(step: int, index: int, seed: int, function: Callable[[Any], Any], argument: Any) -> Any:
    """Returns function(argument), called in a `batch_context` and a `sample_context`; see `call_in_context`.

    Args:
        step: Number of the step, which is that of the batch.
        index: As of `sample_context`.
        seed: As of `sample_context`.
        function: What to call.
        argument: Its argument.

    Raises:
        Exception: Whatever the function raises.
    """
    _STACK.batches.append(step)
    try:
        return call_in_context(index, seed, function, argument)
    finally:
        _STACK.batches.pop()


class batch_context:  # noqa: N801 - read as a statement: with batch_context(number)
    """Starts and ends the work on a batch, as a `with` block; the innermost counts.

    Args:
        number: Number of the batch, over all streams.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        _STACK.batches.append(self._number)

    def __exit__(self, *_: object) -> None:
        _STACK.batches.pop()


def context_depth() -> tuple[int, int]:
    """Returns how many samples and batches are in work in this thread."""
    return len(_STACK.entries), len(_STACK.batches)


def leave_contexts(depth: tuple[int, int]) -> None:
    """Ends the work on samples and batches that an interrupt left: it may come between two steps of a `with` block.

    Args:
        depth: What `context_depth` returned before they began.
    """
    del _STACK.entries[depth[0] :], _STACK.batches[depth[1] :]


def current_sample() -> tuple[int, int] | None:
    """Returns (index, seed) of the innermost stage that is running in this thread; None outside of iteration."""
    entries = _STACK.entries
    if entries:
        return entries[-1]
    activated, config = _activated_samples(), RUNNING.config
    return (activated[-1], config.seed_offset) if activated and config is not None else None


def current_sample_index() -> int:
    """Returns the number of the sample that the innermost stage works on, the same for every layout of workers.

    Raises:
        ConfigError: No hook is running in this thread.
    """
    entries = _STACK.entries
    if entries:
        return entries[-1][0]
    activated = _activated_samples()
    if not activated:
        raise ConfigError(_OUTSIDE.format("current_sample_index"))
    return activated[-1]


def current_batch_index() -> int:
    """Returns the number of the batch that is being made, the same for every layout of workers.

    In a tree that was not built by `get_train_dataset` or its counterparts, it is the number that the outermost stage
    works on.

    Raises:
        ConfigError: No hook is running in this thread.
    """
    if _STACK.batches:
        return _STACK.batches[-1]
    if _STACK.entries:
        return _STACK.entries[0][0]
    activated = _activated_samples()
    if not activated:
        raise ConfigError(_OUTSIDE.format("current_batch_index"))
    return activated[0]


def _activated_samples() -> list[int]:
    """Returns the numbers over all workers of the rank that a program set by `WorkerConfig.worker_activate`."""
    config = RUNNING.config
    if config is None or not RUNNING.samples:
        return []
    return [number * config.layout.num_workers + config.rank_worker_id() for number in RUNNING.samples]


_OUTSIDE = (
    "{} was called outside of a hook. It is known only while a dataset runs the hook, in the thread that runs it: "
    "read it inside the hook, and pass it on from there."
)


BUILD_HOOKS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)
"""Methods of a task encoder that put datasets together."""


class DatasetBuilder(Protocol):
    """Puts the datasets of one call of `get_train_dataset` or its counterparts together."""

    def load(self, dataset: Any) -> Any:
        """Returns the loaded samples of one dataset, cooked if they are crude."""

    def cook(self, dataset: Any) -> Any:
        """Returns a dataset whose crude samples are cooked; others pass."""

    def encode(self, dataset: Any) -> Any:
        """Returns a dataset of encoded samples."""

    @property
    def batch(self) -> Callable[..., Any]:
        """Takes a dataset of encoded samples and the options of `build_batch`; returns a dataset of batches."""

    @property
    def train(self) -> Callable[..., Any]:
        """Takes the arguments of `build_train_datasets`; returns the mixture, through all stages."""

    @property
    def validate(self) -> Callable[..., Any]:
        """Takes the arguments of `build_val_datasets`; returns the datasets in turn, through all stages."""


_BUILDER: ContextVar[DatasetBuilder | None] = ContextVar("builder", default=None)


@contextmanager
def builds_with(builder: DatasetBuilder) -> Iterator[None]:
    """Makes the build hooks of task encoders use a builder.

    Args:
        builder: Of the dataset that is being opened.
    """
    token = _BUILDER.set(builder)
    try:
        yield
    finally:
        _BUILDER.reset(token)


def current_builder() -> DatasetBuilder:
    """Returns the builder of the dataset that is being opened.

    Raises:
        ConfigError: None is.
    """
    builder = _BUILDER.get()
    if builder is None:
        raise ConfigError(
            "A build hook of a task encoder (build_batch and so on) was called outside of get_train_dataset, "
            "get_val_dataset and get_val_datasets, which call build_train_datasets or build_val_datasets. Combine "
            "opened datasets with BlendDataset, MapDataset and the other wrappers."
        )
    return builder
