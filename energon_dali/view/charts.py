"""Bar charts as inline SVG: no script, no colours of their own beyond the page's text colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 480, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 18, 34
_LABELS = 8
"""Most labels below a histogram."""
_ROW = 20
_NAME_LETTERS = 26


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

    def to_svg(self) -> str:
        """Returns the chart as an SVG element; every bar says its label and count when the pointer rests on it."""
        return _histogram(self) if self.is_histogram else _rows(self)


def _histogram(chart: Chart) -> str:
    most, count = max(chart.counts, default=0), len(chart.counts)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = width / max(1, count)
    base = _TOP + height
    parts = [_opening(chart, _HEIGHT)]
    for bar, number in enumerate(chart.counts):
        tall = height * number / most if most else 0.0
        parts.append(
            f'<rect x="{_LEFT + bar * step + 0.5:.2f}" y="{base - tall:.2f}" width="{max(0.5, step - 1):.2f}" '
            f'height="{tall:.2f}" class="bar" fill="currentColor" fill-opacity="0.6">'
            f"<title>{escape(chart.label_of(bar))}: {number:,}</title></rect>"
        )
    parts.append(_line(_LEFT, base, _LEFT + width, base))
    every = max(1, -(-len(chart.labels) // _LABELS))
    for edge in range(0, len(chart.labels), every):
        parts.append(_text(_LEFT + edge * step, base + 14, chart.labels[edge], "middle" if edge else "start"))
    if chart.unit:
        parts.append(_text(_LEFT + width, base + 28, chart.unit, "end"))
    parts.append(_text(_LEFT, _TOP - 6, f"{most:,}", "start"))
    return "".join([*parts, "</svg>"])


def _rows(chart: Chart) -> str:
    most = max(chart.counts, default=0)
    total = chart.total
    height = _TOP + _ROW * max(1, len(chart.counts))
    start, width = 170, _WIDTH - 170 - 110
    parts = [_opening(chart, height)]
    for row, (label, number) in enumerate(zip(chart.labels, chart.counts, strict=True)):
        y = _TOP + row * _ROW - 8
        long = width * number / most if most else 0.0
        name = label if len(label) <= _NAME_LETTERS else f"{label[: _NAME_LETTERS - 1]}…"
        parts.append(_text(start - 8, y + 11, name, "end"))
        parts.append(
            f'<rect x="{start}" y="{y}" width="{max(0.5, long):.2f}" height="{_ROW - 6}" class="bar" '
            f'fill="currentColor" fill-opacity="0.6"><title>{escape(label)}: {number:,}</title></rect>'
        )
        share = f" ({number / total:.1%})" if total else ""
        parts.append(_text(start + long + 6, y + 11, f"{number:,}{share}", "start"))
    return "".join([*parts, "</svg>"])


def _opening(chart: Chart, height: float) -> str:
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" '
        f'font-size="11" aria-label="{escape(chart.title)}"><title>{escape(chart.title)}</title>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="currentColor" stroke-opacity="0.5"/>'


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
    edges: list[float] = []
    power = smallest
    while not edges or edges[-1] <= most:
        for factor in (1, 2, 5):
            edge = factor * power
            if edges and edges[-1] > most:
                break
            if edge <= max(least, smallest):
                edges = [edge]
            else:
                edges.append(edge)
        power *= 10
    return [0.0, *edges] if least < edges[0] else edges


def _round_up(step: float) -> float:
    power = 1.0
    while power > step:
        power /= 10
    while power * 10 <= step:
        power *= 10
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def edge_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Returns edges as short text: 1500000 is "1.5M"."""
    return tuple(_short(edge) for edge in edges)


def _short(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.6g}{letter}"
    return f"{number:.6g}"
