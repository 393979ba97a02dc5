"""The `__restore_key__` of an element: how to make the element again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.errors import SkipSample, StateError, StoreUnavailableError
from energon_dali.samples.base import Key
from energon_dali.shards.documents.content import excerpt

UNIT_NAME = "Unit"
"""Begins the key of a sample of a global batch: (UNIT_NAME, unit, micro-batch of the epoch, place, step, ...)."""
UNIT_NUMBERS = 4
"""Numbers that follow it."""
_KEYS_AT_ONCE = 64
"""Number of elements of a buffer that are read and decoded together after a restore."""


def key_from_json(key: Any) -> Key:
    """Returns a key as nested tuples, which JSON turned into lists."""
    return tuple(key_from_json(part) if isinstance(part, (list, tuple)) else part for part in key)


def key_to_json(key: Any) -> list[Any]:
    """Returns a key as nested lists, which survive JSON."""
    return [key_to_json(part) if isinstance(part, (list, tuple)) else part for part in key]


def expect_name(key: Any, name: str, numbers: int = 1) -> Key:
    """Returns a key that a certain dataset made, as nested tuples.

    Args:
        key: As a user gave it; may come from JSON.
        name: Name of the dataset.
        numbers: Number of integers that follow the name.

    Raises:
        StateError: Another dataset made it, or it is not a key.
    """
    own = isinstance(key, (tuple, list)) and len(key) > numbers and key[0] == name
    if not own or not all(type(part) is int and 0 <= part < 1 << 62 for part in key[1 : 1 + numbers]):
        raise StateError(
            f"The restore key {excerpt(key)} was not made by {name}. Give the __restore_key__ of an element of "
            "this dataset; keys of another dataset, or of one built with other hooks, cannot be restored here."
        )
    return key_from_json(key)


def step_of_key(key: Key) -> int:
    """Returns the step of a global batch, from the key of one of its elements, or those of several.

    Args:
        key: Of a sample, a pack or a batch.
    """
    while UNIT_NAME not in key:
        key = next(part for part in key if isinstance(part, tuple))
    step: int = key[key.index(UNIT_NAME) + UNIT_NUMBERS]
    return step


def try_restore(restore: Callable[[Key], Any], key: Key) -> Any:
    """Returns the element of a key, made again, or the error that prevents it.

    Raises:
        StateError: The key is not of this dataset, or a hook skips an element that it did not skip before.
        StoreUnavailableError: The store returned nothing but errors for too long.
    """
    try:
        return restore(key)
    except (StateError, StoreUnavailableError):
        raise
    except SkipSample as error:
        raise StateError(
            f"A hook raised SkipSample when the element of {key!r} was made again, but not the first time. A hook "
            "below a buffer must do the same each time: mark it @stateless(restore_seeds=True) if it draws random "
            "numbers."
        ) from error
    except Exception as error:
        return error


def restore_groups(
    restore: Callable[[Sequence[Key]], list[Any]],
    groups: Sequence[Sequence[Any]],
    handler: Callable[[Exception, Any, list[Any] | None], None],
) -> list[list[tuple[Key, Any]]]:
    """Returns the groups of a buffer as they were when the state was saved: a (key, element) pair for each element.

    Args:
        restore: Makes the elements of keys, with errors in place of those that can no longer be made.
        groups: The keys of the elements of each group, as the state holds them.
        handler: Called with each of these errors. If it returns, the element is left out.

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
