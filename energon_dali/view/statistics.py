"""Statistics of a scanned dataset or of parts of it, as charts and figures."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.view.charts import Chart, edge_labels, nice_edges
from energon_dali.view.scan import Scan

STATISTICS_SECONDS = 120.0
"""Longest time of the queries of one page of statistics."""
_CATEGORIES = 12
_GROUPS = 20
_FAILURES = 100_000
_FROM = "FROM temp.ranges r CROSS JOIN parts p ON p.sample >= r.start AND p.sample < r.stop "
_FROM_SAMPLES = "FROM temp.ranges r CROSS JOIN samples s ON s.id >= r.start AND s.id < r.stop "
_SPECIFIC = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")


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

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {
            "num_samples": self.num_samples,
            "share": self.share,
            "num_bytes": self.num_bytes,
            "num_failed": self.num_failed,
            "num_duplicates": self.num_duplicates,
            "duplicates": [
                {"count": group.count, "first": group.first, "part": group.part, "digest": group.digest}
                for group in self.duplicates
            ],
            "failures": [
                {"reason": group.reason, "count": group.count, "first": group.first, "key": group.key}
                for group in self.failures
            ],
            "charts": [chart.as_dict() for chart in self.charts],
        }


def collect_statistics(
    scan: Scan, *, source: int = 0, ranges: Sequence[tuple[int, int]] | None = None
) -> ScanStatistics:
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
    with store.reading(ranges, seconds=STATISTICS_SECONDS) as connection:
        samples, size, failed = connection.execute(
            f"SELECT count(*), coalesce(sum(s.bytes), 0), coalesce(sum(s.fails), 0) {_FROM_SAMPLES}"
        ).fetchone()
        (repeated,) = connection.execute(
            "SELECT coalesce(sum(number - 1), 0) FROM "
            f"(SELECT count(*) AS number {_FROM} WHERE p.digest IS NOT NULL GROUP BY p.digest HAVING number > 1)"
        ).fetchone()
        groups = connection.execute(
            # SQLite takes the other columns from the row of the minimum.
            f"SELECT count(*) AS number, min(p.sample), p.name, hex(p.digest) {_FROM} WHERE p.digest IS NOT NULL "
            "GROUP BY p.digest HAVING number > 1 ORDER BY number DESC, 2 LIMIT ?",
            (_GROUPS,),
        ).fetchall()
        return ScanStatistics(
            samples,
            share,
            size,
            failed,
            repeated,
            tuple(DuplicateGroup(count, first, part, digest.lower()) for count, first, part, digest in groups),
            tuple(_failure_groups(connection)),
            tuple(chart for chart in _charts(connection) if chart is not None),
        )


def _failure_groups(connection: sqlite3.Connection) -> list[FailureGroup]:
    rows = connection.execute(
        "SELECT f.sample, f.key, f.reason FROM temp.ranges r CROSS JOIN failures f "
        "ON f.sample >= r.start AND f.sample < r.stop ORDER BY f.sample LIMIT ?",
        (_FAILURES,),
    )
    groups: dict[str, list[Any]] = {}
    for sample, key, reason in rows:
        groups.setdefault(_SPECIFIC.sub("", reason), [reason, 0, sample, key])[1] += 1
    found = [FailureGroup(*group) for group in groups.values()]
    return sorted(found, key=lambda group: (-group.count, group.first))[:_GROUPS]


def _charts(connection: sqlite3.Connection) -> list[Chart | None]:
    visible = "p.width IS NOT NULL AND p.height > 0"
    return [
        _histogram(connection, "widths", "Widths of images and videos", "p.width", visible, "px"),
        _histogram(connection, "heights", "Heights of images and videos", "p.height", visible, "px"),
        _categories(connection, "sizes", "Most frequent sizes", "p.width || ' x ' || p.height", visible),
        _histogram(
            connection,
            "aspect_ratios",
            "Aspect ratios (width / height)",
            "1.0 * p.width / p.height",
            visible,
            "",
            whole=False,
        ),
        _histogram(
            connection, "durations", "Durations of videos and audio", "p.duration", "p.duration >= 0", "s", whole=False
        ),
        _histogram(
            connection, "text_lengths", "Lengths of texts", "p.text_length", "p.text_length IS NOT NULL", "characters"
        ),
        _histogram(connection, "bytes", "Sizes of samples", "s.bytes", "1", "bytes", table=_FROM_SAMPLES),
        _categories(connection, "formats", "Formats of parts", "p.format", "p.format <> ''"),
        _categories(connection, "modes", "Colour modes", "p.mode", "p.mode <> '' AND p.kind IN ('image', 'video')"),
    ]


def _histogram(
    connection: sqlite3.Connection,
    name: str,
    title: str,
    value: str,
    condition: str,
    unit: str,
    *,
    whole: bool = True,
    table: str = _FROM,
) -> Chart | None:
    """Returns the histogram of a column; None if no row meets the condition."""
    least, most = connection.execute(f"SELECT min({value}), max({value}) {table} WHERE {condition}").fetchone()
    if least is None:
        return None
    edges = nice_edges(float(least), float(most), whole=whole)
    cases = " ".join(f"WHEN {value} < {edge!r} THEN {bar}" for bar, edge in enumerate(edges[1:]))
    rows = connection.execute(f"SELECT CASE {cases} END AS bar, count(*) {table} WHERE {condition} GROUP BY bar")
    found = dict(rows.fetchall())
    counts = tuple(found.get(bar, 0) for bar in range(len(edges) - 1))
    return Chart(name, title, edge_labels(edges), counts, is_histogram=True, unit=unit)


def _categories(connection: sqlite3.Connection, name: str, title: str, value: str, condition: str) -> Chart | None:
    """Returns how often the most frequent values of a column occur; None if no row meets the condition."""
    rows = connection.execute(
        f"SELECT {value} AS category, count(*) AS number {_FROM} WHERE {condition} "
        "GROUP BY category ORDER BY number DESC, category"
    ).fetchall()
    if not rows:
        return None
    labels, counts = zip(*rows[:_CATEGORIES], strict=True)
    others = sum(number for _, number in rows[_CATEGORIES:])
    note = f"{others:,} parts with {len(rows) - _CATEGORIES:,} other values are not shown." if others else ""
    return Chart(name, title, tuple(map(str, labels)), counts, note=note)
