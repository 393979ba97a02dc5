"""Calls that each wait for storage, several at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE = 16


def map_in_threads(
    function: Callable[[T], R], items: Sequence[T], threads: int, room: Callable[[], int] | None = None
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order, several of them worked on at the same time.

    Args:
        function: Called in threads, in the context of the caller.
        items: Its arguments.
        threads: Calls at the same time.
        room: Returns the number of the first item that must not be started yet; None starts all of them.
    """
    pool = ThreadPoolExecutor(max(1, min(threads, len(items))), "energon-dali-index")
    waiting: deque[Future[R]] = deque()
    following = 0
    try:
        while following < len(items) or waiting:
            while following < min(len(items), len(items) if room is None else room()):
                waiting.append(pool.submit(copy_context().run, function, items[following]))
                following += 1
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def call_together(call: Callable[[int], T], numbers: Sequence[int]) -> dict[int, T | Exception]:
    """Returns what a function returns or raises for each of several numbers.

    Args:
        call: Called in threads, in the context of the caller.
        numbers: Its arguments, all different.
    """

    def attempt(number: int) -> T | Exception:
        try:
            return call(number)
        except Exception as error:
            return error

    found = map(attempt, numbers) if len(numbers) < 2 else map_in_threads(attempt, numbers, CALLS_AT_ONCE)
    return dict(zip(numbers, found, strict=True))
