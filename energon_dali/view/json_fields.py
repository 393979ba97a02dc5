"""Fields of JSON parts as a table of some samples, and as facets: the most frequent values of all that were scanned."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from energon_dali.errors import EnergonDaliError
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage.request_pool import CALLS_AT_ONCE, map_in_threads
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.plain_fields import Plain, plain_fields
from energon_dali.view.query import Ranges, SampleFilter
from energon_dali.view.scan import Scan
from energon_dali.view.viewed_sample import ViewedSample

MAX_COLUMNS = 24
"""Columns of the table."""
MAX_FACETS = 24
"""Fields whose values are counted for a page."""
VALUES_PER_FACET = 8
_MAX_JSON_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class FieldTable:
    """Samples as rows, and their fields as columns."""

    columns: tuple[str, ...]
    """Names of the fields."""
    rows: tuple[dict[str, str], ...]
    """The values of each sample as text; several of one field are joined by commas."""
    num_left_out: int
    """Number of fields that have no column."""


def field_table(dataset: ViewedDataset, samples: Sequence[ViewedSample]) -> FieldTable:
    """Returns the fields of some samples, read from their first JSON part.

    Args:
        dataset: The dataset; if it is remote, several samples are read at the same time.
        samples: The samples.
    """

    def read(sample: ViewedSample) -> dict[str, str]:
        found: dict[str, str] = {}
        part = next((part for part in sample.parts if part.kind == "json"), None)
        if part is None or part.size > _MAX_JSON_BYTES:
            return found
        try:
            value = parse_json(dataset.read(sample, part), any_number=True)
        except (EnergonDaliError, OSError, ValueError, RecursionError):  # its own page says why
            return found
        for name, plain in plain_fields(value):
            found[name] = f"{found[name]}, {plain}" if name in found else str(plain)
        return found

    rows = [read(one) for one in samples]
    if "://" in dataset.path:
        rows = list(map_in_threads(read, samples, CALLS_AT_ONCE))
    counts: dict[str, int] = {}
    for row in rows:
        for name in row:
            counts[name] = counts.get(name, 0) + 1
    kept = set(heapq.nlargest(MAX_COLUMNS, counts, key=lambda name: counts[name]))
    columns = tuple(name for name in counts if name in kept)
    return FieldTable(columns, tuple(rows), len(counts) - len(columns))


@dataclass(frozen=True, slots=True)
class Facet:
    """A field and its most frequent values."""

    name: str
    """Name of the field."""
    num_samples: int
    """Number of times that a sample has a value of it."""
    num_values: int
    """Number of different values."""
    values: tuple[tuple[Plain, int], ...]
    """(value, number of samples) of the most frequent ones."""


def find_facets(
    scan: Scan, wanted: SampleFilter, *, source: int = 0, ranges: Ranges = None, most: int = VALUES_PER_FACET
) -> list[Facet]:
    """Returns the fields that scanned samples have, and their most frequent values.

    Args:
        scan: The scan.
        wanted: Conditions that the samples have to meet.
        source: Number of the dataset.
        ranges: (start, stop) of the samples to look at, such as those of a split; None is all.
        most: Values of each field.

    Raises:
        StorageError: The scan cannot be read, or the query took too long.
    """
    store = scan.store(source)
    if not store.num_scanned():
        return []
    condition, values = wanted.conditions()
    limits = (
        []
        if ranges is None
        else ["EXISTS (SELECT 1 FROM temp.ranges r WHERE f.sample >= r.start AND f.sample < r.stop)"]
    )
    if not wanted.is_empty:
        limits.append(f"f.sample IN (SELECT s.id FROM samples s WHERE {condition})")
    also = "".join(f" AND {limit}" for limit in limits)
    values = [] if wanted.is_empty else values
    facets: list[Facet] = []
    with store.reading(ranges) as connection:
        fields = f"SELECT f.name, count(*) AS number FROM fields f WHERE 1{also} GROUP BY f.name"
        names = connection.execute(f"{fields} ORDER BY number DESC, 1 LIMIT ?", (*values, MAX_FACETS)).fetchall()
        for name, _ in names:
            groups = (
                f"SELECT f.value AS value, count(*) AS number FROM fields f WHERE f.name = ?{also} GROUP BY f.value"
            )
            total, different = connection.execute(
                f"SELECT coalesce(sum(number), 0), count(*) FROM ({groups})", (name, *values)
            ).fetchone()
            if total:
                rows = connection.execute(
                    f"{groups} ORDER BY number DESC, value LIMIT ?", (name, *values, most)
                ).fetchall()
                facets.append(Facet(name, total, different, tuple(rows)))
    return facets
