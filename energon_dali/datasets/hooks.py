"""Runs the hooks of users under a failure policy: a sample that fails is skipped, counted and named, or it is fatal."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from energon_dali.calls import NOT_AWAITED
from energon_dali.datasets.metrics import FailureRecord
from energon_dali.datasets.restore_key import expect_name, key_from_json, step_of_key
from energon_dali.error_handlers import LOGGER, log_exception
from energon_dali.errors import (
    DecodeError,
    FatalSampleError,
    SkipSample,
    StateError,
    StoreUnavailableError,
    WorkerError,
)
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.task_encoder.context import batch_context, call_in_context, call_in_step, sample_context

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import StreamContext
    from energon_dali.worker_config import WorkerConfig

DEFAULT_FAILURE_TOLERANCE = 100
"""Consecutive failures of one stage after which the run ends; 0 is unlimited."""

NEVER_HEALS = (
    SystemError,
    SyntaxError,
    ImportError,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
    WorkerError,
)
"""Errors that the next sample would meet as well: programming errors, and a process that cannot go on."""

_FIRST_CALLS = 5
"""Calls after which a hook that has never worked is mentioned."""

_DAMAGED_FILES_LOGGED = 100
"""Damaged files of one kind that each process logs one by one."""

_LOGGED_AGAIN = frozenset(10**power for power in range(3, 12))
"""Numbers of failures of one kind at which the log mentions them again."""

_QUOTED = re.compile(r"(?<!\w)'(?![A-Za-z_.]{1,16}')[^']*'(?!\w)")
"""A quoted text, other than a word such as the name of a part."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d[\d,.]*\d|\d", re.IGNORECASE)
_LONGEST_PATTERN = 200

_DEVICE_ERRORS = ("CUDA error", "CUDA out of memory", "CUDA runtime API error", "CUDA driver API error", "Triton Error")


def is_device_error(error: BaseException) -> bool:
    """Returns whether the device caused an error (CUDA error, out of memory), and not the sample."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "AcceleratorError", "CudaError", "DeviceFailedError"}:
        return True
    # Libraries raise device errors as RuntimeError; only their text distinguishes them from a bad sample.
    return isinstance(error, RuntimeError) and any(mark in message_of(error) for mark in _DEVICE_ERRORS)


class FailurePolicy:
    """Decides what happens after a stage fails on a sample: go on with the next one, or end the run.

    One object counts the consecutive failures of one stage in one stream.

    Args:
        stage: Name of the stage or hook, as it appears in statistics and messages.
        tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        context: Takes the counts.
        worker_config: Has the error handler.
    """

    __slots__ = ("_consecutive", "_context", "_handler", "_has_worked", "is_sound", "stage", "tolerance")

    def __init__(self, stage: str, tolerance: int, context: StreamContext, worker_config: WorkerConfig) -> None:
        self.stage = stage
        self.tolerance = tolerance
        self._context = context
        self._handler = worker_config.global_error_handler
        self._consecutive = 0
        self._has_worked = False
        self.is_sound = False
        """Whether the stage worked when it was last called. Then `on_success` has nothing to do, and is not called for
        each sample."""

    def on_success(self) -> None:
        """Ends a run of consecutive failures."""
        self._consecutive = 0
        self._has_worked = self.is_sound = True

    def on_skip(self) -> None:
        """Counts a sample that the stage dropped on purpose."""
        self._context.metrics.skip(self.stage)

    def on_failure(self, error: Exception, sample: Any, *, epoch: int = 0) -> None:
        """Counts a failure and returns if the caller may go on with the next sample.

        With the default error handler, each process logs the first failure of a kind (see `FailureRecord.kind`) and
        counts the others; of damaged files it logs the first hundred.

        Args:
            error: What was raised.
            sample: The sample, a list of samples, or a raw sample.
            epoch: Pass over the data, if the stage has it.

        Raises:
            FatalSampleError: The next sample would fail in the same way, too many samples in a row failed, or the
                user's error handler raised StopIteration.
            Exception: The error itself if it is a device error, a FatalSampleError or a StoreUnavailableError; or
                whatever the user's error handler raises.
        """
        if isinstance(error, SkipSample):
            self.on_skip()
            return
        if is_device_error(error) or isinstance(error, (FatalSampleError, StoreUnavailableError)):
            raise error
        if isinstance(error, StopIteration):  # as Python does in generators: it means nothing to the caller of a hook
            error = _caused(RuntimeError(f"{self.stage} raised StopIteration"), error)
        if isinstance(error, NEVER_HEALS):
            raise FatalSampleError(
                f"{self.stage} raised {text_of(error)}. This kind of error does not go away with the next sample, so "
                f"the run ends here instead of dropping every sample; fix the cause named below.{self._spawn_hint()}"
            ) from error
        self._consecutive += 1
        self.is_sound = False
        sources = sources_of(sample)
        key = key_of(sample)
        first = sources[0] if sources else None
        reason = message_of(error) if isinstance(error, DecodeError) else text_of(error)
        kind = f"{self.stage}: {type(error).__name__}{_origin_of(error)}"
        if isinstance(error, DecodeError):  # one line of the decoder raises for all reasons
            exact = f"{kind}: {pattern_of(reason)}"
            kind = exact if self._context.metrics.has_room_for(exact) else kind
        nth = self._context.metrics.fail(
            FailureRecord(
                stage=self.stage,
                reason=reason,
                dataset=str(first.dataset_path) if first else "",
                shard=first.shard_name if first else "",
                key=key,
                epoch=epoch,
                kind=kind,
                index=first.index if first is not None and isinstance(first.index, int) else -1,
                error=type(error).__name__,
                route=error.route if isinstance(error, DecodeError) else "",
            )
        )
        try:
            # A damaged file is logged in one line, so that many of them can be named.
            most = _DAMAGED_FILES_LOGGED if isinstance(error, DecodeError) else 1
            if self._handler is not log_exception or nth <= most:
                self._handler(error, sample, list(sources) if sources else None)
            elif nth in _LOGGED_AGAIN:
                LOGGER.error("%s: %d samples were dropped for this so far; the last was %r.", kind, nth, key)
        except StopIteration as end:  # unchanged, it would silently end the epoch
            raise FatalSampleError(
                f"global_error_handler raised StopIteration for the sample {key!r}, on which {self.stage} had failed. "
                "Catch it inside the handler; any other exception that the handler raises ends the run unchanged."
            ) from end
        if self._consecutive == _FIRST_CALLS and (hint := self._spawn_hint()):
            LOGGER.error("%s failed in all of its first %d calls.%s", self.stage, _FIRST_CALLS, hint)
        if self.tolerance and self._consecutive >= self.tolerance:
            what = text_of(error).rstrip(".")
            cure = (
                "Correct the data, or the dataset's settings."
                if self.stage in ("read", "load", "decode")
                else "Fix the hook or the data, or raise the tolerance with @stateless(failure_tolerance=...) "
                "(0 is unlimited)."
            )
            raise FatalSampleError(
                f"{self.stage} failed {self._consecutive} times in a row, which is its failure tolerance; the last "
                f"sample was {key!r}: {what}. {cure}{self._spawn_hint()}"
            ) from error
        self._context.metrics.note_dropped()

    def _spawn_hint(self) -> str:
        """Returns a sentence about state that a spawned worker lacks, if this hook has never worked in one; else ""."""
        if self._has_worked or not self._context.fresh_process or self.stage in ("read", "load", "decode"):
            return ""
        return (
            " This worker was spawned: it is a new Python, without what the program set after its imports, such as "
            "globals and Megatron's get_args(). If the hook needs that, keep it in attributes of the task encoder, or "
            'start workers as copies of the trainer: get_loader(..., start_method="fork").'
        )


_UNFINISHED = (GeneratorType, CoroutineType, AsyncGeneratorType)
"""What a call returns that has not run yet."""


def check_result(stage: str, result: Any) -> Any:
    """Returns the result of a hook.

    Raises:
        FatalSampleError: It is None, a generator or a coroutine, which would reach the trainer in place of a sample or
            batch.
    """
    if isinstance(result, GeneratorType):
        raise FatalSampleError(
            f"{stage} returned a generator but is not a generator function itself, so its results would not be taken "
            "one by one. Write `yield from` in it instead of `return`."
        )
    if isinstance(result, _UNFINISHED):
        if isinstance(result, CoroutineType):
            result.close()  # otherwise Python warns that it was never awaited
        what = "a coroutine" if isinstance(result, CoroutineType) else "an async generator"
        raise FatalSampleError(f"{stage} returned {what}. {NOT_AWAITED}")
    if result is None:
        raise FatalSampleError(
            f"{stage} returned None. It must return the sample or batch that it made: check that each path through it "
            "ends with a return statement. To drop a sample, raise SkipSample() in it."
        )
    return result


def _origin_of(error: BaseException) -> str:
    """Returns " at FILE:LINE" of the line that raised an exception; "" if it was never raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def pattern_of(reason: str) -> str:
    """Returns a reason without the numbers, names and paths that differ from sample to sample.

    Args:
        reason: Such as "Part 'jpg': The header says 100,000 x 9 pixels".

    Returns:
        Such as "Part 'jpg': The header says N x N pixels".
    """
    text = _QUOTED.sub("'...'", " ".join(reason.split()))
    return _NUMBER.sub("N", text)[:_LONGEST_PATTERN]


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error.with_traceback(cause.__traceback__)


def text_of(error: BaseException) -> str:
    """Returns the type and the text of an exception, even if its `__str__` fails."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def message_of(error: BaseException) -> str:
    """Returns the text of an exception, even if its `__str__` fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def key_of(sample: Any) -> str:
    """Returns the `__key__` of a sample (several, comma separated, for a list or a batch); "" if there is none."""
    if isinstance(sample, (list, tuple)):
        return ", ".join(filter(None, map(key_of, sample[:8])))
    key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
    if key is None:
        key = getattr(sample, "key", "")
    return ", ".join(map(str, key[:8])) if isinstance(key, list) else str(key)


def sources_of(sample: Any) -> tuple[Any, ...]:
    """Returns the `__sources__` of a sample, list of samples or batch; () if there are none."""
    if isinstance(sample, (list, tuple)):
        return tuple(source for inner in sample for source in sources_of(inner))
    sources = sample.get("__sources__") if isinstance(sample, dict) else getattr(sample, "__sources__", None)
    return tuple(sources) if sources else ()


def is_of_user(function: Callable[..., Any]) -> bool:
    """Returns whether a hook is the user's own, or wraps what the user gave, and not what this package does without."""
    if isinstance(function, partial):  # a cooker
        return True
    module = str(getattr(function, "__module__", ""))
    return not module.startswith("energon_dali.") or module.startswith("energon_dali.tasks.")


NOTHING = object()
"""What `HookRunner.step` returns if an input gave no output, or no further one."""


class HookRunner:
    """Applies a hook, which is a function or a generator function, to the inputs of one stream, and keeps its position.

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
        self._policy = FailurePolicy(stage, tolerance, context, owner.worker_config)
        self._clock = context.metrics.clock(stage)
        self._clock.is_hook |= is_of_user(function)
        self._stage = stage
        self._stream = context.stream
        self._num_streams = owner.worker_config.layout.num_streams
        self._batches = owner.global_batches
        self._seed = owner.hook_seed
        self._samples_per_batch: int | None = getattr(owner, "samples_per_batch", None)
        self.index = 0
        """Inputs that were processed."""
        self.offset = 0
        """Outputs that the running generator has yielded."""
        self.skip_outputs = 0
        """Outputs for the next input that were delivered before the state was saved."""
        self.key: Key = ()
        """Restore key of the last output."""
        self._argument: Any = None
        self._keys: tuple[Any, ...] = ()
        self._outputs: Iterator[Any] | None = None
        self.running = False
        """Whether a loaded input may give further outputs."""

        self._number = 0
        """Number of the loaded input over all streams; of a global batch, its first unit."""
        self._step: int | None = None
        """Its step in a job with global batches."""

    @property
    def global_index(self) -> int:
        """Number of the current input over all streams; the same for every layout."""
        return self._number if self._batches is not None else self.index * self._num_streams + self._stream

    def load(self, argument: Any, keys: tuple[Any, ...]) -> None:
        """Takes the next input and the restore keys of its elements."""
        self._argument, self._keys, self.running = argument, keys, True
        if self._batches is None:
            self._number = self.index * self._num_streams + self._stream
        else:
            self._number = keys[1] if isinstance(keys[0], str) else keys[0][1]
            self._step = step_of_key(keys)
        if self.is_generator:
            self._outputs = iter(self._function(argument))

    def step(self) -> Any:
        """Returns the next output of the loaded input, or NOTHING if there is none.

        Raises:
            FatalSampleError: The hook failed too often in a row, or cannot succeed.
        """
        outer = self._clock.begin(self._argument)
        try:
            if self._step is not None and self._outputs is None:
                result = call_in_step(self._step, self._number, self._seed, self._function, self._argument)
            elif self._outputs is None and self._samples_per_batch is None:
                result = call_in_context(self._number, self._seed, self._function, self._argument)
            else:
                with hook_context(self._number, self._seed, self._samples_per_batch, self._num_streams, self._step):
                    result = self._function(self._argument) if self._outputs is None else next(self._outputs)
        except StopIteration as end:
            if self._outputs is None:  # raised by a plain function, it would silently end the epoch
                self._fail(end)
            else:
                self._policy.on_success()
                if self.offset == 0:  # a generator that yields nothing drops its input
                    self._policy.on_skip()
                self._finish()
            return NOTHING
        except Exception as error:
            self._fail(error)
            return NOTHING
        finally:
            self._clock.end(outer)
        if self._outputs is None:
            if result is None or isinstance(result, _UNFINISHED):
                check_result(self._stage, result)
            if self.skip_outputs:  # another hook, a generator function, delivered outputs for this input
                self._finish()
                return NOTHING
            self.key = (self._name, self._number, *self._keys)
            if not self._policy.is_sound:
                self._policy.on_success()
            self._finish()
            return set_restore_key(result, self.key)
        check_result(self._stage, result)
        self.offset += 1
        if self.skip_outputs:
            self.skip_outputs -= 1
            return NOTHING
        self.key = (self._name, self._number, self.offset - 1, *self._keys)
        return set_restore_key(own_copy(result), self.key)

    def _fail(self, error: Exception) -> None:
        argument = self._argument
        self._finish()
        if self._batches is not None and self._stage in ("batch", "encode_batch"):
            raise FatalSampleError(
                f"{self._stage} raised {text_of(error)}. With global batches every rank delivers the same number of "
                "micro-batches, so this hook may drop none. Drop single samples in encode_sample, or correct it."
            ) from error
        self._policy.on_failure(error, argument)

    def _finish(self) -> None:
        self._argument, self._keys, self._outputs, self.running = None, (), None, False
        self.offset = self.skip_outputs = 0
        self.index += 1


def hook_context(
    index: int, seed: int, samples_per_batch: int | None, num_streams: int, step: int | None
) -> AbstractContextManager[object]:
    """Returns the context of a hook: what it reads as `current_sample_index` and `current_batch_index`.

    Args:
        index: Number of the input, over all streams.
        seed: Of what the hook draws.
        samples_per_batch: If the hook runs ahead of the batches, in workers, how many of its inputs make one; else
            None. Which samples later stages drop is unknown there: the number of the batch counts all samples.
        num_streams: Of the job.
        step: With global batches, the step, which is the number of the batch; None without them.
    """
    if step is not None:
        batch = step
    elif samples_per_batch is None:
        return sample_context(index, seed)
    else:
        own, stream = divmod(index, num_streams)
        batch = own // samples_per_batch * num_streams + stream
    both = ExitStack()
    both.enter_context(batch_context(batch))
    both.enter_context(sample_context(index, seed))
    return both


def own_copy(output: Any) -> Any:
    """Returns a shallow copy of what a generator yielded, which may yield the same object again.

    Each output has its own key. A change that a later hook makes to one output must not appear in the next one, or
    results would depend on where a run was interrupted.
    """
    return copy(output) if isinstance(output, dict) or is_dataclass(output) else output


# --- making the element of a restore key again ----------------------------------------------------------------------


def input_key(owner: SavableDataset[Any], function: Callable[..., Any], key: Key) -> Key:
    """Returns the key of the input from which a hook of `owner` made the output with a key.

    Raises:
        StateError: The key is not of this dataset.
    """
    numbers = 2 if inspect.isgeneratorfunction(function) else 1
    return expect_name(key, type(owner).__name__, numbers)[1 + numbers :]


def rerun(owner: SavableDataset[Any], function: Callable[..., Any], key: Key, remake: Callable[[Key], Any]) -> Any:
    """Returns the output that a hook gave for a key, by running it again.

    Args:
        owner: The dataset of the hook.
        function: The hook.
        key: The key of the output.
        remake: Makes the hook's input from the inner part of the key.

    Raises:
        StateError: The key is not of this dataset, or the hook gives fewer outputs than before.
    """
    argument = remake(input_key(owner, function, key))
    key = key_from_json(key)
    num_streams, samples_per_batch = owner.worker_config.layout.num_streams, getattr(owner, "samples_per_batch", None)
    step = None if owner.global_batches is None else step_of_key(key)
    with hook_context(key[1], owner.hook_seed, samples_per_batch, num_streams, step):
        if not inspect.isgeneratorfunction(function):
            return set_restore_key(function(argument), key)
        offset = key[2]
        for number, result in enumerate(function(argument)):
            if number == offset:
                return set_restore_key(result, key)
    raise StateError(
        f"{type(owner).__name__} gave fewer than {offset + 1} outputs when its hook ran again for {key!r}. A generator "
        "hook that is to be restored must give the same outputs each time: mark it @stateless(restore_seeds=True) if "
        "it draws random numbers."
    )
