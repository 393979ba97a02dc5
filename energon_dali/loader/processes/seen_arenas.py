"""Which arenas of another process's memory this process sees, and which it has finished with."""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import Any

import numpy as np


class SeenArenas:
    """Which arenas of one writer this process sees. Those that it sees while it forks are never used again: the child
    may see them as long as it lives.
    """

    def __init__(self) -> None:
        self._watched: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}
        self._released: deque[int] = deque()
        _seen[id(self)] = self

    def watch(self, number: int, root: np.ndarray[Any, Any]) -> None:
        """Releases an arena when the last view of `root`, its memory, is gone."""
        released, watched = self._released, self._watched

        # Called wherever the garbage collector runs, in any thread: it takes no lock.
        def lost(_: object) -> None:
            watched.pop(number, None)
            released.append(number)

        watched[number] = weakref.ref(root, lost)

    def release(self, number: int) -> None:
        """Releases an arena of which there is no view."""
        self._released.append(number)

    def take_released(self) -> list[int]:
        """Returns the arenas that were released since the last call, and -1 - number of each that a child may see."""
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def keep_for_child(self) -> None:
        """Gives up the arenas that are seen now."""
        for number in list(self._watched):
            if self._watched.pop(number, None) is not None:
                self._released.append(~number)

    def clear(self) -> None:
        """Forgets all arenas."""
        self._watched.clear()


_seen: weakref.WeakValueDictionary[int, SeenArenas] = weakref.WeakValueDictionary()
"""Those of this process by their ids. Not a WeakSet, which other threads must not change while it is walked."""


def _before_fork() -> None:
    for reference in _seen.valuerefs():
        seen = reference()
        if seen is not None:
            seen.keep_for_child()


os.register_at_fork(before=_before_fork)
