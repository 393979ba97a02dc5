"""Processes that run a function and may die: a pool for many items, and a single process that answers requests.

The pool has the items of a dead process done again by another. An item that was alone in a process which died is
counted; after `MAX_DEATHS` it is given up. Items that were in a process together are done again one at a time, so that
the one at fault is found.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from energon_dali.errors import ConfigError, EnergonDaliError

T = TypeVar("T")
R = TypeVar("R")

MAX_DEATHS = 3
"""Processes that an item may end before it is given up, and processes that may end before they begin."""
_LOOK_SECONDS = 0.2
"""How often the ends of processes are looked for: a process that one of them forked may keep its pipe open."""
_END_SECONDS = 0.5
"""How long a process may take to end on its own before it is killed."""


@dataclass(eq=False)
class WorkerPool(Generic[T, R]):
    """Applies a function to items in several processes; use `results` once."""

    function: Callable[..., R]
    """Takes an item. Must be picklable; each process has a copy of its own. What it raises ends the whole."""
    items: Sequence[T]
    """Its arguments."""
    num_workers: int
    """Number of processes."""
    threads: int
    """Items that each process works on at the same time."""
    killed: Callable[[T, str], R]
    """Takes an item that keeps ending its process, and how the last one ended, such as "with SIGKILL"; returns its
    result, or raises."""
    progress: Callable[..., object] | None = None
    """Called here with what the function reports: it then gets a second argument, a function that takes plain values
    and may be called any number of times. None gives it none."""
    max_deaths: int = MAX_DEATHS
    """Processes that an item may end before it is given up."""
    _workers: list[_Worker] = field(default_factory=list, init=False)
    _deaths: Counter[int] = field(default_factory=Counter, init=False)
    _failed_starts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.items)))

    def results(self, room: Callable[[], int]) -> Iterator[tuple[int, R]]:
        """Yields (number of the item, result) in the order in which they are done.

        Args:
            room: Returns the number of the first item that must not be started yet. It is called several times a
                second; what it raises ends the whole.

        Raises:
            ConfigError: The processes do not start.
        """
        remaining = len(self.items)
        try:
            while remaining:
                self._assign(room())
                wait([end for worker in self._workers for end in (worker.pipe, worker.process.sentinel)], _LOOK_SECONDS)
                for worker in [*self._workers]:
                    for number, value in self._take(worker, room):
                        remaining -= 1
                        yield number, value
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.close()

    def _assign(self, end: int) -> None:
        """Starts processes, and gives them items before `end`."""
        while len(self._workers) < self.num_workers:
            self._workers.append(_Worker(self.function, self.threads, reports=self.progress is not None))
        for worker in self._workers:
            while len(worker.numbers) < self.threads and self._waiting and self._waiting[0] < end:
                number = self._waiting.popleft()
                worker.give(number, self.items[number])

    def _take(self, worker: _Worker, room: Callable[[], int]) -> Iterator[tuple[int, R]]:
        """Yields what a process has done; if it died, sees to what it was doing."""
        is_alive = worker.process.is_alive()
        for message in worker.messages():
            if message is None:
                worker.has_begun = True
                continue
            number, is_done, value = message
            if number is None:
                assert self.progress is not None, "the function was given nothing to report by"
                self.progress(*value)
                continue
            worker.numbers.discard(number)
            if not is_done:
                raise value
            yield number, value
        if is_alive:
            return
        self._workers.remove(worker)
        end, lost = worker.close(), sorted(worker.numbers)
        if not worker.has_begun:
            self._failed_starts += 1
            if self._failed_starts >= MAX_DEATHS:
                raise ConfigError(
                    f"The processes do not start: they end {end}. A script that asks for several needs `if __name__ == "
                    '"__main__":` around its calls; or ask for one process.'
                )
        elif len(lost) == 1:
            self._deaths[lost[0]] += 1
            if self._deaths[lost[0]] >= self.max_deaths:
                yield lost[0], self.killed(self.items[lost[0]], end)
                return
        else:  # one by one, which shows the one at fault
            items = [self.items[number] for number in lost]
            pool = WorkerPool(self.function, items, 1, 1, self.killed, self.progress, self.max_deaths)
            for position, value in pool.results(lambda: max(room(), len(lost))):
                yield lost[position], value
            return
        self._waiting.extendleft(reversed(lost))


class NoAnswerError(Exception):
    """A process gave no answer; the message says why, after the name of what it does.

    It ended, was ended because it took too long, or its function raised something unexpected. If it ended, the next
    request starts it again.
    """


class RequestProcess(Generic[T, R]):
    """A process that answers requests, one at a time: nothing that it runs can block or end this process.

    It is started by the first request, and again after it ended. One thread at a time may ask; any thread may call
    `interrupt` and `close`.

    Args:
        function: Takes a request, and returns the answer. Must be picklable; what it keeps stays in the process.
    """

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function
        self._worker: _Worker | None = None
        self._is_closed = False
        self._lock = Lock()
        """Held where a process is started or killed, so that none is started after `close`."""

    def ask(self, request: T, seconds: float) -> R:
        """Returns the answer to a request.

        Args:
            request: What to pass to the function.
            seconds: Longest time; the first request includes starting Python.

        Raises:
            EnergonDaliError: The function raised it.
            OSError: The function raised it.
            NoAnswerError: There is no answer.
        """
        worker, deadline = self._begin(), time.monotonic() + seconds
        try:
            worker.give(0, request)
            message = None
            while message is None:  # the first message is that the process has begun
                message = worker.receive(deadline)
        except TimeoutError as error:
            self.end()
            raise NoAnswerError(f"took longer than {seconds:g} seconds, and was ended") from error
        except (EOFError, OSError) as error:
            raise NoAnswerError(f"ended its process {self.end()}") from error
        except BaseException:  # an answer to this request must not be taken for that to the next one
            self.end()
            raise
        _, is_done, value = message
        if is_done:
            answer: R = value
            return answer
        if isinstance(value, EnergonDaliError | OSError):
            raise value
        raise NoAnswerError(f"raised {type(value).__name__}: {value}")

    def _begin(self) -> _Worker:
        if self._worker is not None and not self._worker.process.is_alive():
            self.end()
        with self._lock:
            if self._is_closed:
                raise NoAnswerError("was ended with the page")
            if self._worker is None:
                self._worker = _Worker(self._function, 1, reports=False)
            return self._worker

    def interrupt(self) -> None:
        """Ends the process. A thread that is asking gets a NoAnswerError; the next request starts it again."""
        with self._lock:
            if self._worker is not None:
                self._worker.process.kill()

    def close(self) -> None:
        """Ends the process for good: from now on, every request is a NoAnswerError."""
        with self._lock:
            self._is_closed = True
        self.interrupt()

    def end(self) -> str:
        """Ends the process if it runs, and returns how it ended, such as "with SIGSEGV"."""
        with self._lock:
            worker, self._worker = self._worker, None
        return "" if worker is None else worker.close()


class _Worker:
    """One process, and the numbers of its items."""

    def __init__(self, function: Callable[..., Any], threads: int, *, reports: bool) -> None:
        # Spawned, not forked: the caller may have threads, and CUDA.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, function, threads, reports), daemon=True)
        self.process.start()
        theirs.close()
        self.numbers: set[int] = set()
        self.has_begun = False

    def give(self, number: int, item: Any) -> None:
        """Gives it an item; a process that has died is noticed later."""
        self.numbers.add(number)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((number, item))

    def messages(self) -> Iterator[Any]:
        """Yields the messages that have arrived."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    def receive(self, deadline: float) -> Any:
        """Returns its next message.

        Raises:
            EOFError: The process has ended, even if one that it forked still holds the pipe.
            TimeoutError: The deadline passed.
        """
        while True:
            is_alive, left = self.process.is_alive(), deadline - time.monotonic()
            if self.pipe.poll(max(0.0, min(left, _LOOK_SECONDS)) if is_alive else 0):
                return self.pipe.recv()
            if not is_alive:
                raise EOFError
            if left <= 0:
                raise TimeoutError

    def close(self) -> str:
        """Ends the process if it still runs, and returns how it ended: "with status 1", "with SIGSEGV"."""
        self.pipe.close()
        self.process.join(_END_SECONDS)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        try:
            return f"with {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        except ValueError:
            return f"with signal {-code}"


def _work(pipe: Connection, function: Callable[..., Any], threads: int, reports: bool) -> None:
    """What each process runs; it ends with its parent, whatever it is doing.

    What codecs and other code print goes to standard error: the output is that of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which ends the processes
    os.dup2(2, 1)
    multiprocessing.current_process().daemon = False  # the function may start processes of its own
    lock = Lock()
    items: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                items.put(pipe.recv())
        finally:
            os._exit(0)

    def answer(message: Any) -> None:
        with lock:
            pipe.send(message)

    def report(*values: Any) -> None:
        answer((None, False, values))

    def serve() -> None:
        while True:
            number, item = items.get()
            try:
                message = (number, True, function(item, report) if reports else function(item))
            except BaseException as error:
                message = (number, False, error)
            try:
                answer(message)
            except OSError:
                os._exit(1)
            except Exception as error:  # it cannot be pickled
                answer((number, False, RuntimeError(f"{type(message[2]).__name__}: {message[2]} ({error})")))
            del item, message  # before the next one is waited for

    try:
        answer(None)  # before an item can end the process
    except OSError:  # the parent has ended
        os._exit(1)
    Thread(target=receive, daemon=True).start()
    for _ in range(threads - 1):
        Thread(target=serve, daemon=True).start()
    serve()  # in the main thread, as code of users may expect
