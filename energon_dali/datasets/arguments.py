"""Checks of what a program gives a dataset: numbers of elements, and functions."""

from __future__ import annotations

import inspect
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


def check_number(name: str, value: Any) -> float:
    """Returns a number as a float, in whatever range it is.

    Args:
        name: Of the argument, for the message.
        value: What was given; numbers of other libraries are fine, text is not, even if it spells one.

    Raises:
        ConfigError: It is not a number.
    """
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} {value!r} is not a number: give a finite number of at least 0.") from None


def check_function(name: str, value: Any, what: str, *, may_yield: bool = True) -> None:
    """Refuses what cannot be called.

    Args:
        name: Of the argument, for the message.
        value: What was given.
        what: What the function gets and returns.
        may_yield: Whether it may be a generator function.

    Raises:
        ConfigError: It cannot be called, or yields where it must not.
    """
    if not callable(value):
        raise ConfigError(f"{name}={value!r} cannot be called: give a function, {what}.")
    if not may_yield and inspect.isgeneratorfunction(value):
        raise ConfigError(
            f"{name}={value!r} is a generator function, and exactly one result is wanted here: give a function, "
            f"{what}, that returns it."
        )
