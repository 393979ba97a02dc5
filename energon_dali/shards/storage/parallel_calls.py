"""Calls that each wait for storage, several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

CALLS_AT_ONCE = 16


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

    if len(numbers) < 2:
        return {number: attempt(number) for number in numbers}
    with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(numbers)), "energon-dali-index") as pool:
        jobs = [pool.submit(copy_context().run, attempt, number) for number in numbers]
        return {number: job.result() for number, job in zip(numbers, jobs, strict=True)}
