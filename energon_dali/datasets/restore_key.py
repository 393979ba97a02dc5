"""The `__restore_key__` that an element carries: the way to make it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from energon_dali.errors import StateError

Key = tuple[Any, ...]


def get_restore_key(element: Any) -> Key:
    """Returns the key of a sample, batch or crude dict; () if it has none."""
    if isinstance(element, dict):
        return element.get("__restore_key__", ())  # type: ignore[no-any-return]
    return getattr(element, "__restore_key__", ())


def set_restore_key(element: Any, key: Key) -> Any:
    """Gives an element its key, where it has a place for one, and returns it.

    A dict of the user's gets no field that it did not have: whoever walks over its values expects none.
    """
    if isinstance(element, dict):
        if "__restore_key__" in element:
            element["__restore_key__"] = key
    elif hasattr(element, "__restore_key__"):
        object.__setattr__(element, "__restore_key__", key)  # frozen dataclasses as well
    return element


def thaw_key(key: Any) -> Key:
    """Returns a key whose tuples may have become lists (JSON does that) with tuples again."""
    return tuple(thaw_key(part) if isinstance(part, (list, tuple)) else part for part in key)


def freeze_key(key: Any) -> list[Any]:
    """Returns a key as nested lists, for a state that survives JSON."""
    return [freeze_key(part) if isinstance(part, (list, tuple)) else part for part in key]


def expect_name(key: Any, name: str, numbers: int = 1) -> Key:
    """Returns a key, which may have been to JSON, with tuples in it.

    Args:
        key: What a user gave.
        name: Of the dataset that has to have made it.
        numbers: How many numbers stand behind the name.

    Raises:
        StateError: Another dataset made it, or it is no key.
    """
    own = isinstance(key, (tuple, list)) and len(key) > numbers and key[0] == name
    if not own or not all(isinstance(part, int) for part in key[1 : 1 + numbers]):
        raise StateError(
            f"The restore key {key!r} was not made by {name}. Give a __restore_key__ of an element of this very "
            f"dataset; keys "
            "of another dataset, or of one built with other hooks, cannot be restored here."
        )
    return thaw_key(key)


def restored(
    restore: Callable[[Key], Any], keys: Iterable[Key], handler: Callable[[Exception, Any, list[Any] | None], None]
) -> Iterator[tuple[Key, Any]]:
    """Yields (key, element made anew) of what a buffer held when the state was saved.

    Args:
        restore: Makes an element of its key.
        keys: Of the buffer.
        handler: Called with what cannot be made any more, which is left out if the handler returns.

    Raises:
        StateError: A key is not of this dataset.
        Exception: Whatever the handler raises.
    """
    for key in keys:
        try:
            element = restore(key)
        except StateError:
            raise
        except Exception as error:
            handler(error, None, None)
            continue
        yield key, element
