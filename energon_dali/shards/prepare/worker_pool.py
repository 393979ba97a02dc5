"""Processes that apply a function to items and may die: the items of a dead process are done again by another.

An item that was alone in a process which died is counted; after `MAX_DEATHS` it is given up. Items that were in a
process together are done again one at a time, so that the one at fault is found.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from threading import Lock
from typing import Any, Generic, TypeVar

from energon_dali.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

MAX_DEATHS = 3
"""Processes that an item may end before it is given up, and processes that may end before they begin."""


@dataclass(eq=False)
class WorkerPool(Generic[T, R]):
    """Applies a function to items in several processes; use `results` once."""

    function: Callable[..., R]
    """Takes an item. Must be picklable. What it raises ends the whole."""
    items: Sequence[T]
    """Its arguments."""
    num_workers: int
    """Number of processes."""
    threads: int
    """Items that each process works on at the same time."""
    killed: Callable[[T, str], R]
    """Takes an item that keeps ending its process, and how; returns its result, or raises."""
    progress: Callable[..., object] | None = None
    """Called here with what the function reports: it then gets a second argument, a function that takes plain values
    and may be called any number of times. None gives it none."""
    _workers: list[_Worker] = field(default_factory=list, init=False)
    _next: int = field(default=0, init=False)
    _suspects: deque[int] = field(default_factory=deque, init=False)
    _deaths: Counter[int] = field(default_factory=Counter, init=False)
    _failed_starts: int = field(default=0, init=False)

    def results(self, room: Callable[[], int]) -> Iterator[tuple[int, R]]:
        """Yields (number of the item, result) in the order in which they are done.

        Args:
            room: Returns the number of the first item that must not be started yet.

        Raises:
            ConfigError: The processes do not start.
        """
        remaining = len(self.items)
        try:
            while remaining:
                self._assign(room())
                ready = set(wait([end for worker in self._workers for end in (worker.pipe, worker.process.sentinel)]))
                for worker in [*self._workers]:
                    if not ready & {worker.pipe, worker.process.sentinel}:
                        continue
                    for number, value in self._take(worker):
                        remaining -= 1
                        yield number, value
        finally:
            self._end()

    def _assign(self, end: int) -> None:
        """Starts processes, and gives them items before `end`."""
        while len(self._workers) < self.num_workers:
            self._workers.append(_Worker(self.function, self.threads, reports=self.progress is not None))
        end = min(end, len(self.items))
        for worker in self._workers:
            if self._suspects or worker.is_alone:
                if not worker.numbers:
                    worker.is_alone = bool(self._suspects)
                    if self._suspects:
                        worker.give(self._suspects.popleft(), self.items)
                if worker.is_alone:
                    continue
            while len(worker.numbers) < self.threads and self._next < end and not self._suspects:
                worker.give(self._next, self.items)
                self._next += 1

    def _take(self, worker: _Worker) -> Iterator[tuple[int, R]]:
        """Yields what a process has done; if it died, notes what it was doing."""
        try:
            while worker.pipe.poll():
                message = worker.pipe.recv()
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
            if worker.process.is_alive():
                return
        except (EOFError, OSError):
            pass
        self._workers.remove(worker)
        end = worker.close()
        if not worker.has_begun:
            self._failed_starts += 1
            if self._failed_starts >= MAX_DEATHS:
                raise ConfigError(
                    f"The processes do not start: {end}. A script that asks for several needs `if __name__ == "
                    '"__main__":` around its calls; or ask for one process.'
                )
        if len(worker.numbers) == 1 and worker.has_begun:
            (number,) = worker.numbers
            self._deaths[number] += 1
            if self._deaths[number] >= MAX_DEATHS:
                yield number, self.killed(self.items[number], end)
                return
        self._suspects.extend(sorted(worker.numbers))

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.close()


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
        self.is_alone = False
        """Whether it does items one at a time, because one of them may have ended a process."""

    def give(self, number: int, items: Sequence[Any]) -> None:
        """Gives it an item; a process that has died is noticed later."""
        self.numbers.add(number)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((number, items[number]))

    def close(self) -> str:
        """Waits for its end, and returns how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.pipe.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _work(pipe: Connection, function: Callable[..., Any], threads: int, reports: bool) -> None:
    """What each process runs; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which ends the processes
    lock = Lock()

    def answer(message: Any) -> None:
        with lock:
            pipe.send(message)

    def report(*values: Any) -> None:
        answer((None, False, values))

    def run(number: int, item: Any) -> None:
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

    with ThreadPoolExecutor(threads) as pool:
        try:
            answer(None)
            while True:
                pool.submit(run, *pipe.recv())
        except (EOFError, OSError):
            os._exit(0)
