"""How an exception crosses between processes: as what it was, with the traceback from where it was raised."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from energon_dali.errors import WorkerError
from energon_dali.loader.workers.messages import StreamFailed
from energon_dali.loader.workers.transport import pack


class WorkerTraceback(Exception):  # noqa: N818 - it is no error, it shows where one came from
    """The cause of an exception that came from another process: the traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def failed_stream(number: int, generation: int, error: BaseException, record: dict[str, Any] | None) -> StreamFailed:
    """Returns the message about an exception; one that does not survive pickling travels as text.

    Args:
        number: The stream that it ended, -1 for the whole process.
        generation: How often that stream was started before.
        error: The exception.
        record: What the process's metrics drained.
    """
    pickled = None
    try:
        pickled = b"".join(pack(error).pieces)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return StreamFailed(number, generation, pickled, summary, text, record)


def rebuild_error(message: StreamFailed, where: str) -> Exception:
    """Returns the exception of a message, caused by its traceback there.

    Args:
        message: What `failed_stream` made.
        where: The process, for the text, such as "worker 1, stream 3".
    """
    error = _unpickled(message) or WorkerError(
        f"{where[:1].upper()}{where[1:]} failed with an exception that cannot travel between processes: "
        f"{message.summary}. Give it attributes that can be pickled to see it as what it is."
    )
    return with_traceback(error, message, where)


def task_error(message: StreamFailed, where: str) -> WorkerError:
    """Returns the error of a process that could not rebuild the dataset.

    Args:
        message: What `failed_stream` made.
        where: The process, such as "worker 1".
    """
    error = WorkerError(
        f"{where[:1].upper()}{where[1:]} could not rebuild the dataset: {message.summary}. What the dataset holds must "
        "be importable in a new process, or be defined in the script itself."
    )
    with_traceback(error, message, where)
    return error


def with_traceback(error: Exception, message: StreamFailed, where: str) -> Exception:
    """Returns the error with the traceback of another process as its cause."""
    error.__cause__ = WorkerTraceback(f"In {where}:\n{message.traceback}")
    return error


def _unpickled(message: StreamFailed) -> Exception | None:
    if message.exception is None:
        return None
    try:
        error = pickle.loads(message.exception)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
