"""The states of many iterators, of which one changes at a time."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.stream import State
from energon_dali.errors import StateError
from energon_dali.shards.documents.state_entries import damaged, list_of

_ROW = 16


class LeafStates:
    """A table of states whose snapshots cost no copy of the whole: what did not change is shared between them.

    A block that crosses processes carries the state after each of its samples, and a blend of 200 datasets changes one
    of them per sample. Shared parts are pickled once per block.

    Args:
        count: How many states.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[list[State | None]] = [
            [None] * min(_ROW, count - start) for start in range(0, count, _ROW)
        ]  # [ceil(n / 16)][16]

    def __getitem__(self, number: int) -> State | None:
        return self._rows[number // _ROW][number % _ROW]

    def __setitem__(self, number: int, state: State) -> None:
        rows, place = self._rows.copy(), number // _ROW
        row = rows[place] = rows[place].copy()
        row[number % _ROW] = state
        self._rows = rows

    def snapshot(self) -> list[list[State | None]]:
        """Returns the states in rows of 16; None for one that is still at its beginning. It never changes."""
        return self._rows

    def load(self, snapshot: Any) -> None:
        """Takes the states of a snapshot.

        Raises:
            StateError: It holds another number of states.
        """
        rows = [list_of({"leaves": row}, "leaves") for row in snapshot]
        saved = sum(map(len, rows))
        if saved != self._count:
            raise StateError(
                f"The state is of {saved} datasets, and {self._count} are put together here. Give the same list of "
                "datasets as when it was saved; to change a mixture, start a new job from the model's checkpoint."
            )
        if list(map(len, rows)) != list(map(len, self._rows)):
            raise damaged("leaves", rows, f"rows of {_ROW} states")
        for state in (state for row in rows for state in row):
            if state is not None and not isinstance(state, dict):
                raise damaged("leaves", state, "rows of states")
        self._rows = rows
