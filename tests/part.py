"""A fixed part of many cases, such as 2/4: every fourth one, from the second one on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import settings

_SWEEP = pytest.mark.sweep
S = TypeVar("S", bound=Sequence[object])
F = TypeVar("F", bound=Callable[..., Any])
WHOLE_PROFILE = "whole"
"""Name of the hypothesis profile with which long property tests try all their examples."""


@dataclass(frozen=True)
class Part:
    """Which of how many parts; all parts together are the whole."""

    number: int
    """1 is the first."""
    parts: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Returns the part of a text such as "2/4".

        Raises:
            ValueError: It is not one.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"{text!r} is not a part. Give one such as 2/4, the second of four.")
        return cls(int(found[1]), int(found[2]))

    def of(self, cases: S) -> S:
        """Returns the cases of this part, as the same kind of sequence."""
        return cases[self.number - 1 :: self.parts]  # type: ignore[return-value]


WHOLE = Part(1, 1)


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Returns cases of a test for `parametrize`: `make test` runs one of `every`, and `make test-faults` the others.

    Args:
        values: The cases; a tuple holds the values of several arguments.
        every: From which distance cases are taken, from the first one on.
    """
    return [
        value if number % every == 0 else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=_SWEEP)
        for number, value in enumerate(values)
    ]


def long_property(examples: int = 100) -> Callable[[F], F]:
    """Decorator of a property test: `make test` tries a quarter of its examples, and `make test-faults` all of them.

    Args:
        examples: How many examples all are.
    """
    is_whole = settings.get_current_profile_name() == WHOLE_PROFILE
    chosen = settings(max_examples=examples if is_whole else -(-examples // 4))

    def decorate(test: F) -> F:
        marked: F = pytest.mark.long_property(chosen(test))
        return marked

    return decorate
