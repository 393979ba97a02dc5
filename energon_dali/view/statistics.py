"""Statistics of a scanned dataset or of parts of it, as figures and charts, which `templates/drawings.html` draws."""

from __future__ import annotations

import math
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from energon_dali.view.query import Ranges
from energon_dali.view.scan import Scan
from energon_dali.view.scan_store import merge_ranges

STATISTICS_SECONDS = 120.0
"""Longest time of the queries of one page of statistics."""
_CATEGORIES = 12
_GROUPS = 20
_FIELD_CHARTS = 24
_FAILURES = 100_000
_SPECIFIC = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")


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
    ranges: tuple[str, ...] = ()
    """What each bar of a histogram counts, in words; () says it by the edges."""
    conditions: tuple[Mapping[str, str], ...] = ()
    """Fields of an address that finds the samples of each bar; () if none does."""

    @property
    def total(self) -> int:
        """Number of all things, those that no bar counts included."""
        return sum(self.counts) + self.rest

    def label_of(self, bar: int) -> str:
        """Returns what a bar is about, in words."""
        if not self.is_histogram:
            return self.labels[bar]
        unit = f" {self.unit}" if self.unit else ""
        words = self.ranges[bar] if self.ranges else f"{self.labels[bar]} to {self.labels[bar + 1]}"
        return f"{words}{unit}"

    def address_of(self, bar: int) -> str:
        """Returns the query of an address that finds the samples of a bar; "" if there is none."""
        return urlencode(self.conditions[bar]) if self.conditions and self.counts[bar] else ""


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Parts with the same content."""

    count: int
    """Number of parts."""
    first: int
    """Index of the first sample that has it."""
    part: str
    """Name of its part."""
    digest: str
    """Digest of the content, in hexadecimal; `SampleFilter(same_as=bytes.fromhex(...))` finds all of them."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Samples that fail for the same reason, leaving out numbers and names."""

    reason: str
    """The reason of the first of them."""
    count: int
    """Number of samples."""
    first: int
    """Index of the first one."""
    key: str
    """Its key."""


@dataclass(frozen=True, slots=True)
class ScanStatistics:
    """Figures and charts of what was scanned."""

    num_samples: int
    """Samples that were scanned."""
    share: float
    """Share of the whole dataset that was scanned, 0 to 1."""
    num_bytes: int
    """Size of all their parts in bytes."""
    num_failed: int
    """Samples that fail to decode."""
    num_duplicates: int
    """Parts whose content an earlier part has already."""
    duplicates: tuple[DuplicateGroup, ...]
    """The contents that occur most often."""
    failures: tuple[FailureGroup, ...]
    """The most frequent reasons of failures."""
    charts: tuple[Chart, ...]
    """Widths, heights, sizes, aspect ratios, durations, text lengths, bytes, formats, colour modes; those with data."""


def collect_statistics(scan: Scan, *, source: int = 0, ranges: Ranges = None) -> ScanStatistics:
    """Returns the statistics of what was scanned so far.

    Args:
        scan: The scan.
        source: Number of the dataset.
        ranges: (start, stop) of the samples to look at, such as those of a split; None is all.

    Raises:
        StorageError: The scan cannot be read, or the queries took too long.
    """
    store, share = scan.store(source), scan.progress(source).share
    if not store.num_scanned():
        return ScanStatistics(0, share, 0, 0, 0, (), (), ())
    if ranges is not None and merge_ranges(ranges) == [(0, scan.progress(source).total)]:
        ranges = None
    parts, all_samples = _from("parts p", "p.sample", ranges), _from("samples s", "s.id", ranges)
    with store.reading(ranges, seconds=STATISTICS_SECONDS) as connection:
        samples, size, failed = connection.execute(
            f"SELECT count(*), coalesce(sum(s.bytes), 0), coalesce(sum(s.fails), 0) {all_samples}"
        ).fetchone()
        (repeated,) = connection.execute(
            "SELECT coalesce(sum(number - 1), 0) FROM "
            f"(SELECT count(*) AS number {parts} WHERE p.digest IS NOT NULL GROUP BY p.digest HAVING number > 1)"
        ).fetchone()
        groups = connection.execute(
            # SQLite takes the other columns from the row of the minimum.
            f"SELECT count(*) AS number, min(p.sample), p.name, hex(p.digest) {parts} "
            "WHERE p.digest IS NOT NULL GROUP BY p.digest HAVING number > 1 ORDER BY number DESC, 2 LIMIT ?",
            (_GROUPS,),
        ).fetchall()
        return ScanStatistics(
            samples,
            share,
            size,
            failed,
            repeated,
            tuple(DuplicateGroup(count, first, part, digest.lower()) for count, first, part, digest in groups),
            tuple(_failure_groups(connection, ranges)),
            tuple(chart for chart in _charts(connection, parts, all_samples, ranges) if chart is not None),
        )


def group_failures(scan: Scan, *, source: int = 0) -> list[FailureGroup]:
    """Returns the most frequent reasons of failures.

    Args:
        scan: The scan.
        source: Number of the dataset.

    Raises:
        StorageError: The scan cannot be read, or the queries took too long.
    """
    store = scan.store(source)
    if not store.num_scanned():
        return []
    with store.reading() as connection:
        return _failure_groups(connection, None)


def _from(table: str, sample: str, ranges: Ranges) -> str:
    """Returns where a query reads from: a table, or its rows in the ranges of the connection.

    Args:
        table: The table.
        sample: Its column with the index of the sample.
        ranges: None is all: SQLite can then use the order of an index.
    """
    if ranges is None:
        return f"FROM {table}"
    return f"FROM temp.ranges r CROSS JOIN {table} ON {sample} >= r.start AND {sample} < r.stop"


def _failure_groups(connection: sqlite3.Connection, ranges: Ranges) -> list[FailureGroup]:
    failures = _from("failures f", "f.sample", ranges)
    rows = connection.execute(f"SELECT f.sample, f.key, f.reason {failures} ORDER BY f.sample LIMIT ?", (_FAILURES,))
    groups: dict[str, list[Any]] = {}
    for sample, key, reason in rows:
        groups.setdefault(_SPECIFIC.sub("", reason), [reason, 0, sample, key])[1] += 1
    found = [FailureGroup(*group) for group in groups.values()]
    return sorted(found, key=lambda group: (-group.count, group.first))[:_GROUPS]


def _charts(connection: sqlite3.Connection, parts: str, samples: str, ranges: Ranges) -> Iterator[Chart | None]:
    visible = "p.width IS NOT NULL AND p.height > 0"
    histogram, categories = partial(_histogram, connection, parts), partial(_categories, connection, parts)
    pixels: dict[str, Any] = {"unit": "px", "whole": True}
    yield histogram("widths", "Widths of images and videos", "p.width", visible, "width", **pixels)
    yield histogram("heights", "Heights of images and videos", "p.height", visible, "height", **pixels)
    sides = (("min_width", "max_width"), ("min_height", "max_height"))
    yield categories("sizes", "Most frequent sizes", ("p.width", "p.height"), visible, sides)
    yield histogram("aspect_ratios", "Aspect ratios (width / height)", "1.0 * p.width / p.height", visible, "aspect")
    yield histogram("durations", "Durations of videos and audio", "p.duration", "p.duration >= 0", "duration", unit="s")
    known = "p.text_length IS NOT NULL"
    letters: dict[str, Any] = {"unit": "characters", "whole": True}
    yield histogram("text_lengths", "Lengths of texts", "p.text_length", known, "text_length", **letters)
    size: dict[str, Any] = {"unit": "bytes", "whole": True}
    yield _histogram(connection, samples, "bytes", "Sizes of samples", "s.bytes", "1", "bytes", **size)
    yield categories("formats", "Formats of parts", ("p.format",), "p.format <> ''", (("format",),))
    shown = "p.mode <> '' AND p.kind IN ('image', 'video')"
    yield from _field_charts(connection, ranges)
    yield categories("modes", "Colour modes", ("p.mode",), shown, (("mode",),))


def _field_charts(connection: sqlite3.Connection, ranges: Ranges) -> Iterator[Chart | None]:
    """Yields a chart for each of the first fields of JSON parts whose values occur more than once."""
    fields = _from("fields f", "f.sample", ranges)
    names = f"SELECT f.name, count(*) AS number {fields} GROUP BY f.name ORDER BY number DESC, 1 LIMIT ?"
    for number, (name, _) in enumerate(connection.execute(names, (_FIELD_CHARTS,)).fetchall()):
        columns = f"SELECT f.value, count(*) AS number {fields} WHERE f.name = ? GROUP BY f.value"
        rows = connection.execute(f"{columns} ORDER BY number DESC, 1 LIMIT ?", (name, _CATEGORIES)).fetchall()
        if not rows or rows[0][1] < 2:  # an identifier: every sample has its own
            continue
        kinds, total = connection.execute(f"SELECT count(*), sum(number) FROM ({columns})", (name,)).fetchone()
        counts = tuple(count for _, count in rows)
        others = total - sum(counts)
        note = f"{others:,} values of {kinds - len(rows):,} other kinds are not shown." if others else ""
        conditions = tuple({"field": f"{name}={value}"} for value, _ in rows)
        labels = tuple(str(value) or "(empty)" for value, _ in rows)
        yield Chart(
            f"field-{number}", f"JSON field {name}", labels, counts, note=note, rest=others, conditions=conditions
        )


def _histogram(
    connection: sqlite3.Connection,
    table: str,
    name: str,
    title: str,
    value: str,
    condition: str,
    stem: str,
    *,
    unit: str = "",
    whole: bool = False,
) -> Chart | None:
    """Returns the histogram of a column; None if no row meets the condition.

    A column that has one value alone has one bar, which says it: a range around it would say less.

    Args:
        connection: The scan.
        table: Where the query reads from.
        name: Short name of the chart.
        title: Its title.
        value: The column, or what is computed of it.
        condition: Which rows have it.
        stem: What the conditions of a grid on it are called: `min_STEM` and `max_STEM`.
        unit: Unit of the values.
        whole: Whether they are whole numbers.
    """
    least, most = connection.execute(f"SELECT min({value}), max({value}) {table} WHERE {condition}").fetchone()
    if least is None:
        return None
    if least == most:
        (count,) = connection.execute(f"SELECT count(*) {table} WHERE {condition}").fetchone()
        label = f"{_exact(least)} {unit}".strip()
        alone = Chart(name, title, (label,), (count,), note="All of them have this value.")
        return replace(alone, conditions=(_between(stem, least, least, whole=whole),))
    edges = nice_edges(float(least), float(most), whole=whole)
    cases = " ".join(f"WHEN {value} < {edge!r} THEN {bar}" for bar, edge in enumerate(edges[1:]))
    rows = connection.execute(f"SELECT CASE {cases} END AS bar, count(*) {table} WHERE {condition} GROUP BY bar")
    found = dict(rows.fetchall())
    counts = tuple(found.get(bar, 0) for bar in range(len(edges) - 1))
    bars = list(pairwise(edges))
    return Chart(
        name,
        title,
        edge_labels(edges),
        counts,
        is_histogram=True,
        unit=unit,
        ranges=tuple(_range_words(low, high, whole=whole) for low, high in bars),
        conditions=tuple(_between(stem, low, math.nextafter(high, -math.inf), whole=whole) for low, high in bars),
    )


def _between(stem: str, low: float, high: float, *, whole: bool) -> dict[str, str]:
    """Returns the fields of an address that finds values from low to high, both inclusive."""
    if whole:
        return {f"min_{stem}": str(int(low)), f"max_{stem}": str(int(high))}
    if low == high:  # bounds that rounding cannot pass
        low, high = math.floor(low * 1e4) / 1e4, math.ceil(high * 1e4) / 1e4
    return {f"min_{stem}": repr(low), f"max_{stem}": repr(high)}


def _range_words(low: float, high: float, *, whole: bool) -> str:
    """Returns what a bar counts: 20 to 39, or 7 alone, of whole numbers; from 0.5 to below 0.6 of others."""
    if not whole:
        return f"{_short(low)} to below {_short(high)}"
    last = int(high) - 1
    return f"{last:,}" if last == int(low) else f"{int(low):,} to {last:,}"


def _exact(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"


def _categories(
    connection: sqlite3.Connection,
    table: str,
    name: str,
    title: str,
    values: tuple[str, ...],
    condition: str,
    fields: tuple[tuple[str, ...], ...],
) -> Chart | None:
    """Returns how often the most frequent values of columns occur; None if no row meets the condition.

    Args:
        connection: The scan.
        table: Where the query reads from.
        name: Short name of the chart.
        title: Its title.
        values: The columns.
        condition: Which rows have them.
        fields: For each column, the conditions of a grid that have to be its value.
    """
    columns = ", ".join(values)
    groups = f"SELECT {columns}, count(*) AS number {table} WHERE {condition} GROUP BY {columns}"
    rows = connection.execute(f"{groups} ORDER BY number DESC, {columns} LIMIT ?", (_CATEGORIES,)).fetchall()
    if not rows:
        return None
    labels = tuple(" x ".join(map(str, row[:-1])) for row in rows)
    counts = tuple(row[-1] for row in rows)
    kinds, parts = connection.execute(f"SELECT count(*), sum(number) FROM ({groups})").fetchone()
    others = parts - sum(counts)
    note = f"{others:,} parts with {kinds - len(rows):,} other values are not shown." if others else ""
    found = tuple(
        {field: str(value) for names, value in zip(fields, row[:-1], strict=True) for field in names} for row in rows
    )
    return Chart(name, title, labels, counts, note=note, rest=others, conditions=found)


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
