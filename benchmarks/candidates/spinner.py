"""A busy trainer: Python code that never releases the interpreter lock voluntarily, as a thread or as a process."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

TURN = 20_000
"""Iterations of an empty loop per turn."""


@contextlib.contextmanager
def spin_next_to(kind: str) -> Iterator[Callable[[], int]]:
    """Keeps one core busy with Python during the block; yields a function that returns the number of turns so far.

    Args:
        kind: "thread" spins in a thread of this process, "process" in its own process, "none" not at all.
    """
    if kind == "none":
        yield lambda: 0
    elif kind == "thread":
        with _thread() as turns:
            yield turns
    else:
        with _process() as turns:
            yield turns


@contextlib.contextmanager
def _thread() -> Iterator[Callable[[], int]]:
    counter = [0]
    end = threading.Event()

    def spin() -> None:
        while not end.is_set():
            for _ in range(TURN):
                pass
            counter[0] += 1

    thread = threading.Thread(target=spin, name="busy-trainer", daemon=True)
    thread.start()
    try:
        yield lambda: counter[0]
    finally:
        end.set()
        thread.join()


@contextlib.contextmanager
def _process() -> Iterator[Callable[[], int]]:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0, lock=False)
    started = context.Event()
    process = context.Process(target=_spin_for_ever, args=(counter, started), daemon=True)
    process.start()
    started.wait(60)
    try:
        yield lambda: int(counter.value)
    finally:
        process.kill()
        process.join()


def _spin_for_ever(counter: Any, started: Any) -> None:
    started.set()
    while True:
        for _ in range(TURN):
            pass
        counter.value += 1
