"""States of datasets: what they may hold, parts that many elements share, and forms that earlier releases saved."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from energon_dali.datasets.restore_key import freeze_key

State = dict[str, Any]
"""Plain ints, strings, bools, None, lists, and dicts with string keys."""


class Snapshot:
    """Rows of keys that do not change any more, such as what a packing buffer holds in one round.

    Args:
        rows: Nested lists or tuples of plain values; not changed from now on.
        data: The same, pickled; given in place of the rows where another process sent them.
    """

    __slots__ = ("_data", "_rows")

    def __init__(self, rows: Sequence[Any] | None = None, data: bytes = b"") -> None:
        self._rows = rows
        self._data = data

    @property
    def rows(self) -> Sequence[Any]:
        """The rows; unpickled when they are first asked for."""
        if self._rows is None:
            self._rows = pickle.loads(self._data)
        return self._rows

    @property
    def data(self) -> bytes:
        """The rows, pickled."""
        return self._data or pickle.dumps(self._rows, protocol=5)


class Rest:
    """The rows of a snapshot from one on; stands in a state for the list of them.

    A state with a Rest costs no time that grows with the rows, and `plain` makes JSON of it when it is asked for.

    Args:
        snapshot: The rows.
        start: The first of those that are meant.
    """

    __slots__ = ("snapshot", "start")

    def __init__(self, snapshot: Snapshot, start: int = 0) -> None:
        self.snapshot = snapshot
        self.start = start

    def __reduce__(self) -> Any:
        return Rest, (self.snapshot, self.start)


def plain(state: Any) -> Any:
    """Returns a state in plain values, with lists in place of what it shares with other states."""
    if isinstance(state, Rest):
        return freeze_key(state.snapshot.rows[state.start :])
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state


def in_todays_form(state: Any, first: Any) -> Any:
    """Returns the state of an iterator in the form that it has today.

    Earlier releases wrote a level `{"inner": state}` for the stage where media are decoded, with None in it as long as
    nothing had come out. Where that level was depended on the decoder, so that a state fitted no other decoder. And
    they did not count what a pipeline gave.

    Args:
        state: What was saved, or a part of it; may be damaged.
        first: The state of the iterator before its first element, or the part of it at the same place: it shows which
            levels there are.
    """
    while (
        isinstance(state, dict)
        and state.keys() == {"inner"}
        and not (isinstance(first, dict) and first.keys() == {"inner"})
    ):
        state = state["inner"]
    if state is None:
        return first
    counts = isinstance(first, dict) and first.keys() == {"given", "inner"}
    if counts and isinstance(state, dict) and "given" not in state:
        state = {"given": state.get("index", 0), "inner": state}
    if isinstance(state, dict) and isinstance(first, dict):
        return {name: in_todays_form(value, first[name]) if name in first else value for name, value in state.items()}
    if isinstance(state, list) and isinstance(first, list) and len(state) == len(first):
        return [in_todays_form(part, of_first) for part, of_first in zip(state, first, strict=True)]
    return state


def config_in_todays_form(config: Any) -> Any:
    """Returns the config of a dataset as today's `SavableDataset.config` gives it.

    Earlier releases named the stages that cross processes and decode, which change no order, and DALI's own reader.
    """
    if isinstance(config, list):
        return [config_in_todays_form(member) for member in config]
    if not isinstance(config, dict):
        return config
    if config.get("type") in ("DecodeDataset", "HandOverDataset") and "inner" in config:
        return config_in_todays_form(config["inner"])
    if config.get("type") == "NativeSourceDataset" and "source" in config:
        return config_in_todays_form(config["source"])
    return {name: config_in_todays_form(value) for name, value in config.items()}
