"""Which sample a hook is working on; a stack per thread, because stages pull their inputs through one another."""

from __future__ import annotations

import threading
from types import TracebackType

from energon_dali.errors import ConfigError


class _Stack(threading.local):
    """The samples that are being worked on in a thread, outermost stage first."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.batches: list[int] = []


_STACK = _Stack()


def push_sample(index: int, seed: int) -> None:
    """Enters the work on a sample in this thread.

    Args:
        index: Number of the input of the stage, over all streams.
        seed: Seed of the job.
    """
    _STACK.entries.append((index, seed))


def pop_sample() -> None:
    """Leaves the work that was entered last in this thread."""
    _STACK.entries.pop()


class sample_context:  # noqa: N801 - read as a statement: with sample_context(index, seed)
    """Enters and leaves the work on a sample, as a `with` block.

    A class and no generator function: it is entered for every sample, and costs a third.

    Args:
        index: Number of the input of the stage, over all streams.
        seed: Seed of the job.
    """

    __slots__ = ("_entry",)

    def __init__(self, index: int, seed: int) -> None:
        self._entry = (index, seed)

    def __enter__(self) -> None:
        _STACK.entries.append(self._entry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _STACK.entries.pop()


class batch_context:  # noqa: N801 - read as a statement: with batch_context(number)
    """Enters and leaves the work on a batch, as a `with` block; the innermost holds.

    Args:
        number: Number of the batch, over all streams.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        _STACK.batches.append(self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _STACK.batches.pop()


def current_sample() -> tuple[int, int] | None:
    """Returns (index, seed) of the innermost stage at work in this thread; None outside of iteration."""
    entries = _STACK.entries
    return entries[-1] if entries else None


def current_sample_index() -> int:
    """Returns the number of the sample that the innermost stage works on, the same for every layout of workers.

    Raises:
        ConfigError: No hook is running in this thread.
    """
    entries = _STACK.entries
    if not entries:
        raise ConfigError(_OUTSIDE.format("current_sample_index"))
    return entries[-1][0]


def current_batch_index() -> int:
    """Returns the number of the batch that is being made, the same for every layout of workers.

    Outside of a pipeline of `get_train_dataset` and its kin, the number that the outermost stage works on.

    Raises:
        ConfigError: No hook is running in this thread.
    """
    if _STACK.batches:
        return _STACK.batches[-1]
    if not _STACK.entries:
        raise ConfigError(_OUTSIDE.format("current_batch_index"))
    return _STACK.entries[0][0]


_OUTSIDE = (
    "{} was asked for outside of a hook. It is known only while a dataset runs the hook, in the thread that runs it: "
    "read it inside the hook, and hand it on from there."
)
