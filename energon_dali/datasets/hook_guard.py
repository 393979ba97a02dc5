"""What happens when a stage fails on one sample: it is skipped, counted and named, or it is fatal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.datasets.metrics import FailureRecord
from energon_dali.error_handlers import LOGGER, log_exception
from energon_dali.errors import DecodeError, FatalSampleError, SkipSample, StoreUnavailableError, WorkerError

if TYPE_CHECKING:
    from energon_dali.datasets.stream import StreamContext
    from energon_dali.worker_config import WorkerConfig

DEFAULT_FAILURE_TOLERANCE = 100
"""Consecutive failures of one stage after which the run ends; 0 is unlimited."""

NEVER_HEALS = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
    WorkerError,
)
"""Errors that the next sample would meet as well: programming errors and a process at its end."""

_TOLD_AGAIN = frozenset(10**power for power in range(3, 12))
"""At which numbers of failures of one kind the log says so again."""

_DEVICE_ERRORS = ("CUDA error", "CUDA out of memory", "CUDA runtime API error", "CUDA driver API error", "Triton Error")


def is_device_error(error: BaseException) -> bool:
    """Returns whether an error is the device's (CUDA error, out of memory) and not the sample's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "AcceleratorError", "CudaError", "DeviceFailedError"}:
        return True
    # Libraries raise device errors as RuntimeError; only their text tells them from a bad sample.
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _DEVICE_ERRORS)


class HookGuard:
    """Judges the failures of one stage of one stream.

    Args:
        stage: Name of the stage or hook, as it appears in statistics and messages.
        tolerance: Consecutive failures after which FatalSampleError is raised; 0 is unlimited.
        context: Takes the counts.
        worker_config: Gives the error handler.
    """

    __slots__ = ("_consecutive", "_context", "_handler", "stage", "tolerance")

    def __init__(self, stage: str, tolerance: int, context: StreamContext, worker_config: WorkerConfig) -> None:
        self.stage = stage
        self.tolerance = tolerance
        self._context = context
        self._handler = worker_config.global_error_handler
        self._consecutive = 0

    def succeeded(self) -> None:
        """Ends a run of consecutive failures."""
        self._consecutive = 0

    def skipped(self) -> None:
        """Counts a sample that the stage dropped on purpose."""
        self._context.metrics.skip(self.stage)

    def failed(self, error: Exception, sample: Any, *, epoch: int = 0) -> None:
        """Counts a failure and returns, so that the caller goes on with the next sample.

        Where the user gave no other error handler, the first failure of a kind (stage, type of the error, line that
        raised it) is printed in full in each process, and the others are counted.

        Args:
            error: What was raised.
            sample: The sample, a list of samples, or a raw sample.
            epoch: Pass over the data, if the stage knows it.

        Raises:
            FatalSampleError: The error cannot heal, too many came in a row, or the user's error handler raised
                StopIteration.
            Exception: A device error, a FatalSampleError or a StoreUnavailableError, as it came; or whatever the user's
                error handler raises.
        """
        if isinstance(error, SkipSample):
            self.skipped()
            return
        if is_device_error(error) or isinstance(error, (FatalSampleError, StoreUnavailableError)):
            raise error
        if isinstance(error, NEVER_HEALS):
            raise FatalSampleError(
                f"{self.stage} raised {text_of(error)}. This kind of error does not go away with the next sample, so "
                "the run ends here instead of dropping every sample; fix the cause named below."
            ) from error
        self._consecutive += 1
        sources = sources_of(sample)
        key = key_of(sample)
        first = sources[0] if sources else None
        kind = f"{self.stage}: {type(error).__name__}{_place_of(error)}"
        nth = self._context.metrics.fail(
            FailureRecord(
                stage=self.stage,
                reason=f"{error}" if isinstance(error, DecodeError) else text_of(error),
                dataset=str(first.dataset_path) if first else "",
                shard=first.shard_name if first else "",
                key=key,
                epoch=epoch,
                kind=kind,
            )
        )
        try:
            if self._handler is not log_exception or nth == 1:
                self._handler(error, sample, list(sources) if sources else None)
            elif nth in _TOLD_AGAIN:
                LOGGER.error("%s: %d samples were dropped for this so far; the last was %r.", kind, nth, key)
        except StopIteration as end:  # as it is, it would end the epoch in silence
            raise FatalSampleError(
                f"global_error_handler raised StopIteration for the sample {key!r}, on which {self.stage} had failed. "
                "Catch it inside the handler; any other exception that the handler raises ends the run as it came."
            ) from end
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
                f"sample was {key!r}: {what}. {cure}"
            ) from error
        self._context.metrics.note_dropped()


def check_result(stage: str, result: Any) -> Any:
    """Returns what a hook returned.

    Args:
        stage: Name of the hook.
        result: What it returned.

    Raises:
        FatalSampleError: It is None, which would reach the trainer in place of a sample or batch.
    """
    if result is None:
        raise FatalSampleError(
            f"{stage} returned None. It must return the sample or batch that it made: check that each way through it "
            "ends with a return statement. To drop a sample, raise SkipSample() in it."
        )
    return result


def _place_of(error: BaseException) -> str:
    """Returns " at FILE:LINE" of the line that raised an exception; "" where it was never raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def text_of(error: BaseException) -> str:
    """Returns the type and the text of an exception, whose own code for the text may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:
        return f"{type(error).__name__}: (its text cannot be shown: {type(failure).__name__})"


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
