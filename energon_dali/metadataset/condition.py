"""Conditions on measures, such as "text_tokens < 4096 and vision_tokens > 0"."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.measured import NOT_MEASURED
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.documents.content import excerpt

MAX_LETTERS = 1000
LARGEST_NUMBER = (1 << 62) - 1
_FORM = 'Write comparisons of measures and whole numbers, joined by `and`, such as "0 < text_tokens <= 4096".'
_OPERATORS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_BY_SIGN = dict(_OPERATORS.values())


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons that all have to hold; made by `parse`."""

    comparisons: tuple[tuple[str | int, str, str | int], ...]
    """(name or number, sign, name or number) each."""

    @classmethod
    def parse(cls, text: object) -> Condition:
        """Returns the condition that a text holds. Nothing in the text is run.

        Raises:
            ConfigError: It is anything else than comparisons joined by `and`.
        """
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_LETTERS:
            raise ConfigError(f"where={excerpt(text)} is not a condition. {_FORM}")
        try:
            parsed = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConfigError(f"where={excerpt(text)} cannot be understood: {error}. {_FORM}") from error
        comparisons = []
        waiting = [parsed]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
                waiting += reversed(node.values)
            elif isinstance(node, ast.Compare) and all(type(sign) in _OPERATORS for sign in node.ops):
                sides = [_side(side, text) for side in (node.left, *node.comparators)]
                signs = [_OPERATORS[type(sign)][0] for sign in node.ops]
                comparisons += list(zip(sides, signs, sides[1:], strict=False))
            else:
                raise ConfigError(f"where={excerpt(text)} has more than comparisons joined by `and`. {_FORM}")
        found = cls(tuple(comparisons))
        if not found.names:
            raise ConfigError(f"where={excerpt(text)} names no measure. {_FORM}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The measures that it compares."""
        sides = [side for left, _, right in self.comparisons for side in (left, right)]
        return tuple(dict.fromkeys(side for side in sides if isinstance(side, str)))

    def holds(self, values: Mapping[str, Int64Array]) -> npt.NDArray[np.bool_]:
        """Returns for which samples it holds; never for one that was not measured.

        Args:
            values: int64[n] of each of `names`.
        """
        kept: npt.NDArray[np.bool_] = np.logical_and.reduce([values[name] != NOT_MEASURED for name in self.names])
        for left, sign, right in self.comparisons:
            sides = [values[side] if isinstance(side, str) else side for side in (left, right)]
            kept &= _BY_SIGN[sign](*sides)
        return kept

    def __str__(self) -> str:
        return " and ".join(f"{left} {sign} {right}" for left, sign, right in self.comparisons)


def _side(node: ast.expr, text: str) -> str | int:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= LARGEST_NUMBER:
        return node.value
    raise ConfigError(f"where={excerpt(text)} compares {excerpt(ast.unparse(node))}. {_FORM}")
