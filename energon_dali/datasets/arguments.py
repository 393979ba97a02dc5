"""Checks of what a program gives a dataset: numbers of elements, and functions."""

from __future__ import annotations

import operator
from typing import Any

from energon_dali.errors import ConfigError


def check_count(name: str, value: Any, advice: str, *, least: int = 1) -> int:
    """Returns a whole number as an int.

    Args:
        name: Of the argument, for the message.
        value: What was given; numbers of other libraries are fine.
        advice: What to give instead, as the end of a sentence.
        least: The smallest that is allowed.

    Raises:
        ConfigError: It is no whole number, or too small.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name}={value!r} cannot be: it must be a whole number of at least {least}; {advice}.")
    return number


def check_function(name: str, value: Any, what: str) -> None:
    """Refuses what cannot be called.

    Args:
        name: Of the argument, for the message.
        value: What was given.
        what: What the function gets and returns.

    Raises:
        ConfigError: It cannot be called.
    """
    if not callable(value):
        raise ConfigError(f"{name}={value!r} cannot be called: give a function, {what}.")
