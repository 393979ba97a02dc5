"""Bar charts: what their bars count, and round edges for histograms. `templates/drawings.html` draws them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chart:
    """Numbers of things, to be drawn as bars."""

    name: str
    """Short name for addresses and tests, such as "widths"."""
    title: str
    """Title in words."""
    labels: tuple[str, ...]
    """What each bar is about. Of a histogram: the lower edge of each bar, and the upper edge of the last."""
    counts: tuple[int, ...]
    """Length of each bar."""
    is_histogram: bool = False
    """Whether the bars are ranges of a number, in ascending order."""
    unit: str = ""
    """Unit of the labels of a histogram, such as "px"."""
    note: str = ""
    """What the chart leaves out; "" if nothing."""
    rest: int = 0
    """Number of things that no bar counts."""

    @property
    def total(self) -> int:
        """Number of all things, those that no bar counts included."""
        return sum(self.counts) + self.rest

    def label_of(self, bar: int) -> str:
        """Returns what a bar is about, in words."""
        if not self.is_histogram:
            return self.labels[bar]
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.labels[bar]} to {self.labels[bar + 1]}{unit}"


def nice_edges(least: float, most: float, *, whole: bool) -> list[float]:
    """Returns the edges of the bars of a histogram: round numbers, the first at most `least`, the last above `most`.

    The bars are equally wide where the largest value is at most 20 times the smallest; otherwise their edges are
    1, 2, 5, 10, 20, ...

    Args:
        least: Smallest value, at least 0.
        most: Largest value.
        whole: Whether the values are whole numbers.
    """
    if most > 20 * max(least, 1e-3 if not whole else 1.0):
        return _series(least, most, whole)
    span = max(most - least, 1.0 if whole else max(most, 1e-6) * 1e-3)
    step = _round_up(span / 20)
    if whole:
        step = max(1.0, step)
    first = int(least / step)
    edges = [first * step]
    while edges[-1] <= most:
        edges.append((first + len(edges)) * step)
    return edges


def _series(least: float, most: float, whole: bool) -> list[float]:
    """Returns 1, 2, 5, 10, ..., after a 0 where values are below the first of them."""
    smallest = 1.0 if whole else 1e-3
    series = [factor * smallest * 10.0**power for power in range(300) for factor in (1, 2, 5)]
    first = bisect_right(series, max(least, smallest)) - 1
    edges = series[first : bisect_right(series, most, lo=first) + 1]
    return [0.0, *edges] if least < edges[0] else edges


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def edge_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Returns edges as short text: 1500000 is "1.5M"."""
    return tuple(_short(edge) for edge in edges)


def _short(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.6g}{letter}"
    return f"{number:.6g}"
