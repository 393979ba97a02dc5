"""Checks the arguments of datasets: counts, numbers and functions."""

from __future__ import annotations

import inspect
import operator
from typing import Any

from energon_dali.calls import refuse_async
from energon_dali.errors import ConfigError


def check_count(name: str, value: Any, advice: str, *, least: int = 1) -> int:
    """Returns a whole number as an int.

    Args:
        name: Name of the argument, for the message.
        value: Its value; numbers of other libraries are accepted.
        advice: What to give instead, as the end of a sentence.
        least: The smallest value that is allowed.

    Raises:
        ConfigError: It is not a whole number, or too small.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name}={value!r} is invalid: it must be a whole number of at least {least}; {advice}.")
    return number


def check_number(name: str, value: Any) -> float:
    """Returns a number as a float, of any range.

    Args:
        name: Name of the argument, for the message.
        value: Its value; numbers of other libraries are accepted, text is not.

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
    """Checks that an argument is a function.

    Args:
        name: Name of the argument, for the message.
        value: Its value.
        what: What the function receives and returns, such as "from an element to an element".
        may_yield: Whether it may be a generator function.

    Raises:
        ConfigError: It is not callable, it is async, or it is a generator function and must not be one.
    """
    if not callable(value):
        raise ConfigError(f"{name}={value!r} is not callable: give a function, {what}.")
    refuse_async(value)
    if not may_yield and inspect.isgeneratorfunction(value):
        raise ConfigError(
            f"{name}={value!r} is a generator function, but must return exactly one result: give a function, "
            f"{what}, that returns it."
        )
