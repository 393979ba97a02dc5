"""The `__restore_key__` that an element carries: the way to make it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.errors import SkipSample, StateError, StoreUnavailableError
from energon_dali.shards.documents.content import excerpt

Key = tuple[Any, ...]

_KEYS_AT_ONCE = 64
"""Elements of a buffer that are read and decoded together after a restore."""


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


def key_from_json(key: Any) -> Key:
    """Returns a key whose tuples may have become lists (JSON does that) with tuples again."""
    return tuple(key_from_json(part) if isinstance(part, (list, tuple)) else part for part in key)


def key_to_json(key: Any) -> list[Any]:
    """Returns a key as nested lists, for a state that survives JSON."""
    return [key_to_json(part) if isinstance(part, (list, tuple)) else part for part in key]


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
    if not own or not all(type(part) is int and 0 <= part < 1 << 62 for part in key[1 : 1 + numbers]):
        raise StateError(
            f"The restore key {excerpt(key)} was not made by {name}. Give a __restore_key__ of an element of this very "
            f"dataset; keys "
            "of another dataset, or of one built with other hooks, cannot be restored here."
        )
    return key_from_json(key)


def try_restore(restore: Callable[[Key], Any], key: Key) -> Any:
    """Returns the element of a key, made anew, or the error in its place.

    Raises:
        StateError: The key is not of this dataset, or a hook skips now what it did not skip then.
        StoreUnavailableError: The store gave nothing but errors for too long.
    """
    try:
        return restore(key)
    except (StateError, StoreUnavailableError):
        raise
    except SkipSample as error:
        raise StateError(
            f"A hook raised SkipSample when the element of {key!r} was made again, and did not at first. A hook below "
            "a buffer must do the same each time: mark it @stateless(restore_seeds=True) if it draws random numbers."
        ) from error
    except Exception as error:
        return error


def restore_groups(
    restore: Callable[[Sequence[Key]], list[Any]],
    groups: Sequence[Sequence[Any]],
    handler: Callable[[Exception, Any, list[Any] | None], None],
) -> list[list[tuple[Key, Any]]]:
    """Returns the groups of a buffer as they were when the state was saved: (key, element made anew) of each element.

    Args:
        restore: Makes the elements of keys, with errors in place of those that cannot be made.
        groups: The keys of the elements of each group, as the state holds them.
        handler: Called with what cannot be made any more, which is left out if the handler returns.

    Raises:
        StateError: A key is not of this dataset.
        Exception: Whatever the handler raises.
    """
    keys = [(number, key_from_json(key)) for number, group in enumerate(groups) for key in group]
    made: list[list[tuple[Key, Any]]] = [[] for _ in groups]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        chunk = keys[start : start + _KEYS_AT_ONCE]
        for (number, key), element in zip(chunk, restore([key for _, key in chunk]), strict=True):
            if isinstance(element, Exception):
                handler(element, None, None)
            else:
                made[number].append((key, element))
    return made
