"""Saved states: entries, which may be damaged and are checked before they are used, and rows that states share."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from energon_dali.errors import StateError
from energon_dali.shards.documents.content import excerpt

MAX_COUNT = 1 << 48
"""Largest count, position or epoch; multiplied by the number of streams it still fits 64 bits."""
MAX_STATE_DEPTH = 200
"""Levels of nesting in a state: each dataset of a tree adds one or two."""
MAX_KEY_DEPTH = 64
"""Levels of nesting in a restore key."""


class DamagedStateError(StateError):
    """An entry of a state cannot be used. `restore_stream` adds which stream it belongs to.

    Args:
        reason: What is wrong, and what to do, without "The state is damaged".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"The state is damaged: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamagedStateError], tuple[str]]:
        return type(self), (self.reason,)


def count_of(state: Any, name: str, most: int = MAX_COUNT) -> int:
    """Returns an integer from 0 to `most`.

    Raises:
        StateError: The entry is missing or is something else; the message names it.
    """
    return checked_count(entry_of(state, name), name, most)


def flag_of(state: Any, name: str) -> bool:
    """Returns a bool; raises StateError if the entry is missing or is anything else."""
    value = entry_of(state, name)
    if not isinstance(value, bool):
        raise damaged(name, value, "true or false")
    return value


def list_of(state: Any, name: str) -> list[Any]:
    """Returns a list; raises StateError if the entry is missing or is anything else."""
    value = entry_of(state, name)
    if not isinstance(value, (list, tuple)):
        raise damaged(name, value, "a list")
    return list(value)


def state_of(state: Any, name: str = "inner") -> dict[str, Any]:
    """Returns the state of an inner dataset; raises StateError if the entry is missing or is anything else."""
    value = entry_of(state, name)
    if not isinstance(value, dict):
        raise damaged(name, value, "a state")
    return value


def numbers_of(state: Any, name: str, count: int) -> list[float]:
    """Returns `count` finite numbers of at least 0; raises StateError if the entry is anything else."""
    values = list_of(state, name)
    if len(values) != count or not all(_is_amount(value) for value in values):
        raise damaged(name, values, f"{count} finite numbers of at least 0")
    return values


def indices_of(state: Any, name: str, count: int) -> list[int]:
    """Returns distinct integers below `count`; raises StateError if the entry is anything else."""
    values = list_of(state, name)
    if len(values) > count or len({checked_count(value, name, count - 1) for value in values}) != len(values):
        raise damaged(name, values, f"different numbers below {count}")
    return values


def keys_of(state: Any, name: str) -> list[Any]:
    """Returns a list of restore keys in their saved form; raises StateError if the entry is anything else."""
    keys = list_of(state, name)
    for key in keys:
        if not key:
            raise damaged(name, key, "a list of restore keys")
        check_key(key, name)
    return keys


def check_key(key: Any, name: str) -> None:
    """Raises StateError unless a restore key is a list of strings, 64-bit integers and such lists."""
    level: list[Any] = [key]
    for _ in range(MAX_KEY_DEPTH):
        if not all(isinstance(part, (list, tuple)) for part in level):
            raise damaged(name, key, "a list of restore keys")
        inner: list[Any] = [part for parts in level for part in parts]
        if not all(isinstance(part, (list, tuple, str)) or _is_number(part) for part in inner):
            raise damaged(name, key, "a list of restore keys")
        level = [part for part in inner if isinstance(part, (list, tuple))]
        if not level:
            return
    raise damaged(name, key, f"a list of restore keys of at most {MAX_KEY_DEPTH} levels")


def check_plain(state: Any) -> None:
    """Raises StateError unless a state has only plain values, nested in at most MAX_STATE_DEPTH levels."""
    level = [state]
    for _ in range(MAX_STATE_DEPTH):
        inner: list[Any] = []
        for outer in level:
            if isinstance(outer, Mapping):
                if not all(isinstance(name, str) for name in outer):
                    raise DamagedStateError(f"{excerpt(outer)} has a name that is not text.")
                inner += outer.values()
            else:
                inner += outer
        level = [value for value in inner if isinstance(value, (Mapping, list, tuple))]
        if not level:
            return
    raise DamagedStateError(f"it is nested in more than {MAX_STATE_DEPTH} levels. Restore another one.")


def checked_count(value: Any, name: str, most: int = MAX_COUNT) -> int:
    """Returns `value` if it is an integer from 0 to `most`; raises a StateError that names the entry if not."""
    if type(value) is not int or not 0 <= value <= most:
        raise damaged(name, value, f"a whole number from 0 to {most}")
    return value


def entry_of(state: Any, name: str) -> Any:
    """Returns an entry; raises StateError if it is missing or the state is not a mapping."""
    if not isinstance(state, Mapping):
        raise DamagedStateError(f"{excerpt(state)} should be a mapping. Restore another one.")
    if name not in state:
        raise DamagedStateError(f"its entry {name!r} is missing. Restore another one.")
    return state[name]


def damaged(name: str, value: object, wanted: str) -> StateError:
    """Returns the error for an entry that cannot be used."""
    return DamagedStateError(f"its entry {name!r} is {excerpt(value)}, and should be {wanted}. Restore another one.")


def _is_number(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e18


def restore_stream(iterator: Any, state: dict[str, Any], stream: int) -> None:
    """Continues an iterator at a state that may be damaged.

    Args:
        iterator: Takes it by `load_state_dict`, before its first element.
        state: The saved state of such an iterator.
        stream: Number of the stream, for the message.

    Raises:
        StateError: The state does not fit the iterator.
    """
    try:
        iterator.load_state_dict(state)
    except DamagedStateError as error:
        raise StateError(f"The state of stream {stream} is damaged, or of another release: {error.reason}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(
            f"The state of stream {stream} is damaged, or of another release: restoring it failed with "
            f"{type(error).__name__}: {str(error)[:300]}. Restore another one."
        ) from error


class Snapshot:
    """Rows that no longer change: keys, such as those of a packing buffer in one round, or states.

    Args:
        rows: Nested lists or tuples of plain values and states, which must not be changed.
        data: The same, pickled, instead of the rows if another process sent them.
    """

    __slots__ = ("_data", "_plain", "_rows")

    def __init__(self, rows: Sequence[Any] | None = None, data: bytes = b"") -> None:
        self._rows = rows
        self._data = data
        self._plain: list[Any] | None = None

    @property
    def rows(self) -> Sequence[Any]:
        """The rows, unpickled on first access."""
        if self._rows is None:
            self._rows = pickle.loads(self._data)
        return self._rows

    @property
    def plain_rows(self) -> list[Any]:
        """The rows as nested lists, converted on first access; the caller must not change them."""
        if self._plain is None:
            self._plain = _plain_rows(self.rows)
        return self._plain

    @property
    def data(self) -> bytes:
        """The rows, pickled."""
        return self._data or pickle.dumps(self._rows, protocol=5)

    def __reduce__(self) -> Any:
        return Snapshot, (None, self.data)


class Rest:
    """The rows of a snapshot from `start` on. A state holds it in place of the list of these rows.

    Making a state with a Rest takes the same time however many rows there are. `plain` replaces it by the list. The
    rows become plain lists once per snapshot: the lists of several states share them.

    Args:
        snapshot: The rows.
        start: Index of the first row that belongs to the state.
    """

    __slots__ = ("snapshot", "start")

    def __init__(self, snapshot: Snapshot, start: int = 0) -> None:
        self.snapshot = snapshot
        self.start = start

    def __reduce__(self) -> Any:
        return Rest, (self.snapshot, self.start)


def plain(state: Any) -> Any:
    """Returns a state in plain values, with lists in place of the parts that it shares with other states.

    The dicts and lists of the state are new. The rows inside these lists belong to all states of a round, so that
    saving after every pack of a buffer of thousands does not copy the keys of the whole buffer each time.
    """
    if isinstance(state, Rest):
        return state.snapshot.plain_rows[state.start :]
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state


def _plain_rows(rows: Any) -> Any:
    """Returns rows as nested lists, with the states among them in plain values."""
    if isinstance(rows, (list, tuple)):
        return [_plain_rows(row) if isinstance(row, (list, tuple, dict)) else row for row in rows]
    return plain(rows)
