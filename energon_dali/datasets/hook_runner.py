"""Runs a hook that is a function or a generator function, input after input, and knows where it stands."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import is_dataclass
from types import GeneratorType
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.batch_count import batch_ahead
from energon_dali.datasets.hook_guard import HookGuard, check_result
from energon_dali.datasets.restore_key import Key, expect_name, set_restore_key
from energon_dali.datasets.stream import StreamContext
from energon_dali.errors import FatalSampleError, StateError
from energon_dali.task_encoder.context import batch_context, sample_context

NOTHING = object()
"""What `HookRunner.step` gives when an input led to no (further) output."""


class HookRunner:
    """Applies one hook to one input after another within one stream.

    The outputs get a `__restore_key__`: (name of the dataset, index of the input[, number of the output], *inner keys).

    Args:
        owner: The dataset whose hook this is; its class name goes into the keys.
        function: The hook: a function, or a generator function with any number of outputs per input.
        stage: Name in statistics and messages.
        tolerance: Consecutive failures after which FatalSampleError is raised.
        context: The stream.
    """

    def __init__(
        self,
        owner: SavableDataset[Any],
        function: Callable[..., Any],
        stage: str,
        tolerance: int,
        context: StreamContext,
    ) -> None:
        self._name = type(owner).__name__
        self._function = function
        self.is_generator = inspect.isgeneratorfunction(function)
        self._guard = HookGuard(stage, tolerance, context, owner.worker_config)
        self._metrics = context.metrics
        self._stage = stage
        self._stream = context.stream
        self._num_streams = owner.worker_config.layout.num_streams
        self._seed = owner.place_seed
        self._samples_per_batch: int | None = getattr(owner, "samples_per_batch", None)
        self.index = 0
        """Inputs that are done with."""
        self.offset = 0
        """Outputs that the running generator has given."""
        self.skip_outputs = 0
        """Outputs of the next generator that were given before the state was saved."""
        self.key: Key = ()
        """Restore key of the last output."""
        self._argument: Any = None
        self._keys: tuple[Any, ...] = ()
        self._outputs: Iterator[Any] | None = None
        self._loaded = False

    @property
    def global_index(self) -> int:
        """Number of the current input over all streams; the same for every layout."""
        return self.index * self._num_streams + self._stream

    @property
    def running(self) -> bool:
        """Whether an input was loaded that may give further outputs."""
        return self._loaded

    def load(self, argument: Any, keys: tuple[Any, ...]) -> None:
        """Takes the next input, and the keys of the elements in it."""
        self._argument, self._keys, self._loaded = argument, keys, True
        if self.is_generator:
            self._outputs = iter(self._function(argument))

    def step(self) -> Any:
        """Returns the next output of the loaded input, or NOTHING when there is none (any more).

        Raises:
            FatalSampleError: The hook failed too often in a row, or for good.
        """
        start = time.perf_counter()
        try:
            with hook_context(self.global_index, self._seed, self._samples_per_batch, self._num_streams):
                result = self._function(self._argument) if self._outputs is None else next(self._outputs)
        except StopIteration as end:
            if self._outputs is None:  # a plain function has no business raising this: it would end the epoch silently
                self._fail(RuntimeError(f"{self._stage} raised StopIteration"), end)
            else:
                self._guard.succeeded()
                if self.offset == 0:  # a generator that gives nothing drops its input
                    self._guard.skipped()
                self._finish()
            return NOTHING
        except Exception as error:
            self._fail(error)
            return NOTHING
        finally:
            self._metrics.add_time(self._stage, time.perf_counter() - start)
        index = self.global_index
        if self._outputs is None:
            if isinstance(result, GeneratorType):
                raise FatalSampleError(
                    f"{self._stage} returned a generator and is no generator function itself, so that its results "
                    "would not be taken one by one. Write `yield from` in it instead of `return`."
                )
            check_result(self._stage, result)
            keys = self._keys
            self._guard.succeeded()
            self._finish()
            self.key = (self._name, index, *keys)
            return set_restore_key(result, self.key)
        check_result(self._stage, result)
        self.offset += 1
        if self.skip_outputs:
            self.skip_outputs -= 1
            return NOTHING
        self.key = (self._name, index, self.offset - 1, *self._keys)
        return set_restore_key(own_copy(result), self.key)

    def _fail(self, error: Exception, cause: Exception | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        argument = self._argument
        self._finish()
        self._guard.failed(error, argument)

    def _finish(self) -> None:
        self._argument, self._keys, self._outputs, self._loaded = None, (), None, False
        self.offset = self.skip_outputs = 0
        self.index += 1


def hook_context(
    index: int, seed: int, samples_per_batch: int | None, num_streams: int
) -> AbstractContextManager[object]:
    """Returns the context in which a hook runs: what it reads as `current_sample_index` and `current_batch_index`.

    Args:
        index: Number of the input, over all streams.
        seed: Of what the hook draws.
        samples_per_batch: Where the hook runs ahead of the batches, how many of its inputs make one; else None.
        num_streams: Of the job.
    """
    if samples_per_batch is None:
        return sample_context(index, seed)
    both = ExitStack()
    both.enter_context(batch_context(batch_ahead(index, samples_per_batch, num_streams)))
    both.enter_context(sample_context(index, seed))
    return both


def own_copy(output: Any) -> Any:
    """Returns a shallow copy of what a generator gave: it may give the same object again.

    Each output has a key of its own, and what a hook above changes in one must not be in the next, which would have it
    or not depending on where a run was interrupted.
    """
    return copy(output) if isinstance(output, dict) or is_dataclass(output) else output


def input_key(owner: SavableDataset[Any], function: Callable[..., Any], key: Key) -> Key:
    """Returns the key of the input of which a hook made an element.

    Args:
        owner: The dataset whose hook it is.
        function: The hook, which works on one element.
        key: The key of its output.

    Raises:
        StateError: The key is not of this dataset.
    """
    numbers = 2 if inspect.isgeneratorfunction(function) else 1
    return expect_name(key, type(owner).__name__, numbers)[1 + numbers :]


def rerun(owner: SavableDataset[Any], function: Callable[..., Any], key: Key, remake: Callable[[Key], Any]) -> Any:
    """Returns the output that a hook gave for a key, by running it again.

    Args:
        owner: The dataset whose hook it is.
        function: The hook.
        key: The key of the output.
        remake: Makes the hook's input from the inner part of the key.

    Raises:
        StateError: The key is not of this dataset, or the hook gives fewer outputs than it did.
    """
    name = type(owner).__name__
    is_generator = inspect.isgeneratorfunction(function)
    key = expect_name(key, name, 2 if is_generator else 1)
    index, rest = key[1], key[2:]
    per_batch, num_streams = getattr(owner, "samples_per_batch", None), owner.worker_config.layout.num_streams
    if not is_generator:
        argument = remake(rest)
        with hook_context(index, owner.place_seed, per_batch, num_streams):
            return set_restore_key(function(argument), key)
    offset, rest = rest[0], rest[1:]
    argument = remake(rest)
    with hook_context(index, owner.place_seed, per_batch, num_streams):
        for number, result in enumerate(function(argument)):
            if number == offset:
                return set_restore_key(result, key)
    raise StateError(
        f"{name} gave fewer than {offset + 1} outputs when its hook was run again for {key!r}. A generator hook that "
        f"is to be restored "
        "must give the same outputs each time: mark it @stateless(restore_seeds=True) if it draws random numbers."
    )
