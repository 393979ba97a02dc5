"""The `__restore_key__` that an element carries: the way to make it again."""

from __future__ import annotations

from typing import Any

from energon_dali.errors import StateError

Key = tuple[Any, ...]


def get_restore_key(element: Any) -> Key:
    """Returns the key of a sample, batch or crude dict; () if it has none."""
    if isinstance(element, dict):
        return element.get("__restore_key__", ())  # type: ignore[no-any-return]
    return getattr(element, "__restore_key__", ())


def set_restore_key(element: Any, key: Key) -> Any:
    """Gives an element its key, where it can carry one, and returns it."""
    if isinstance(element, dict):
        element["__restore_key__"] = key
    elif hasattr(element, "__restore_key__"):
        element.__restore_key__ = key
    return element


def thaw_key(key: Any) -> Key:
    """Returns a key whose tuples may have become lists (JSON does that) with tuples again."""
    return tuple(thaw_key(part) if isinstance(part, (list, tuple)) else part for part in key)


def freeze_key(key: Any) -> list[Any]:
    """Returns a key as nested lists, for a state that survives JSON."""
    return [freeze_key(part) if isinstance(part, (list, tuple)) else part for part in key]


def expect_name(key: Key, name: str) -> None:
    """Raises StateError unless a key was made by the dataset called `name`."""
    if not key or key[0] != name:
        raise StateError(
            f"The restore key {key!r} was not made by {name}. Give a __restore_key__ of an element of this very "
            f"dataset; keys "
            "of another dataset, or of one built with other hooks, cannot be restored here."
        )
