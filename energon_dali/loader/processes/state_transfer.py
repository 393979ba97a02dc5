"""Sends the states of a stream to another process; parts that several states share are sent once."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from energon_dali.shards.documents.state_entries import Rest, Snapshot

SentStates = tuple[bytes, dict[int, bytes], list[int]]
"""(pickled states that contain numbers of snapshots, new pickled snapshots by number, numbers that stay known)."""


class StateSender:
    """Pickles the states of one stream for another process, each snapshot once while states refer to it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Snapshot]] = {}
        """By id, (number, snapshot) of what the last sent states refer to; kept alive, so that the ids stay valid."""
        self._count = 0

    def send(self, states: Any) -> SentStates:
        """Returns states, in any nesting, in the form that a StateReceiver takes, in this order."""
        live: dict[int, tuple[int, Snapshot]] = {}
        new: dict[int, bytes] = {}

        def number_of(snapshot: Snapshot) -> int:
            known = live.get(id(snapshot)) or self._known.get(id(snapshot))
            if known is None:
                self._count += 1
                known = (self._count, snapshot)
                new[self._count] = snapshot.data
            live[id(snapshot)] = known
            return known[0]

        file = io.BytesIO()
        _StatePickler(file, number_of).dump(states)
        self._known = live
        return file.getvalue(), new, [number for number, _ in live.values()]


class StateReceiver:
    """Takes the states of one stream, in the order in which they were sent."""

    def __init__(self) -> None:
        self._known: dict[int, Snapshot] = {}

    def take(self, sent: SentStates) -> Any:
        """Returns the states."""
        data, new, live = sent
        self._known = {number: Snapshot(data=new[number]) if number in new else self._known[number] for number in live}
        return _StateUnpickler(io.BytesIO(data), self._known).load()


class _StatePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, number_of: Callable[[Snapshot], int]) -> None:
        super().__init__(file, protocol=5)
        self._number_of = number_of

    def reducer_override(self, obj: Any) -> Any:
        # Called for instances of classes alone, so plain values cost nothing.
        return (_known_rest, (self._number_of(obj.snapshot), obj.start)) if type(obj) is Rest else NotImplemented


class _StateUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: dict[int, Snapshot]) -> None:
        super().__init__(file)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        return self._rest if name == _known_rest.__name__ else super().find_class(module, name)

    def _rest(self, number: int, start: int) -> Rest:
        return Rest(self._known[number], start)


def _known_rest(number: int, start: int) -> Rest:
    """Represents a rest of a snapshot, which the receiver finds by its number, in pickled states."""
    raise AssertionError(f"the rest of snapshot {number} from row {start} was unpickled without its table")
