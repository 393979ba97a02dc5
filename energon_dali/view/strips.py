"""Coloured strips: where the samples of a pack begin and end, and which positions a mask selects.

`templates/drawings.html` draws them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.plan.rng import Int64Array

MAX_STRIPS = 16
"""Strips that are shown of one field."""
_MAX_RUNS = 2000

_BOUNDARIES = re.compile(r"cu_?seq|cu_?len|cumulative_|boundaries")
_POSITIONS = re.compile(r"position_?ids$|positions$|pos_ids$")
_LENGTHS = re.compile(r"(seq|sample|pack|segment)_?len(gth)?s?$|^lengths$|^seqlens?")
_LABELLED = re.compile(r"mask$|segment|document_?ids|doc_?ids|seq_?ids|token_type|modality")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive positions that belong together."""

    start: int
    """First position."""
    stop: int
    """Position after the last."""
    label: str
    """What they have in common."""
    colour: int
    """Number of their colour; -1 draws none."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of positions, divided into runs."""

    title: str
    """What it shows."""
    length: int
    """Number of positions."""
    runs: tuple[Run, ...]
    """The runs, in order."""
    note: str = ""
    """What is left out; "" if nothing."""


def find_strips(name: str, array: npt.NDArray[Any]) -> list[Strip]:
    """Returns the strips of a field, by its name and values; none if it has neither boundaries nor marks.

    Args:
        name: Name of the field, such as "cu_seqlens" or "loss_mask".
        array: (L,), or with leading dimensions, of which each row is a strip.
    """
    if array.ndim == 0 or array.size == 0 or (array.shape[-1] < 2 and array.ndim > 1) or array.ndim > 3:
        return []
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool or _is_whole(array)):
        return []
    last = name.rpartition(".")[2].lower()
    last = re.sub(r"\[\d+\]$", "", last)
    rows = array.reshape(-1, array.shape[-1])
    strips = []
    for number, row in enumerate(rows[:MAX_STRIPS]):
        title = name if len(rows) == 1 else f"{name}, row {number}"
        found = _strip(last, row.astype(np.int64))
        if found is not None:
            length, runs = found
            note = f"Only the first {_MAX_RUNS:,} of {len(runs):,} runs are drawn." if len(runs) > _MAX_RUNS else ""
            strips.append(Strip(title, length, tuple(runs[:_MAX_RUNS]), note))
    return strips


def _is_whole(array: npt.NDArray[Any]) -> bool:
    """Returns whether floats are whole numbers, as in loss masks."""
    if not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
        return False
    return bool((array == np.rint(array)).all()) and float(np.abs(array).max()) < 2**31


def _strip(name: str, row: Int64Array) -> tuple[int, list[Run]] | None:
    """Returns (number of positions, runs) of one row; None if its name or values are not those of a strip."""
    if _BOUNDARIES.search(name):
        kept = row[: int(np.argmax(np.diff(row) <= 0)) + 1] if (np.diff(row) <= 0).any() else row  # padded at its end
        if len(kept) < 2 or kept[0] != 0:
            return None
        return int(kept[-1]), list(_segments(kept))
    if _LENGTHS.search(name):
        lengths = row[row > 0]
        if not len(lengths):
            return None
        edges = np.concatenate([[0], np.cumsum(lengths)])
        return int(edges[-1]), list(_segments(edges))
    if _POSITIONS.search(name):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] + 1) < 0)
        edges = np.concatenate([starts if len(starts) and starts[0] == 0 else [0, *starts], [len(row)]])
        return len(row), list(_segments(edges.astype(np.int64)))
    if _LABELLED.search(name):
        edges = np.concatenate([[0], np.flatnonzero(np.diff(row)) + 1, [len(row)]])
        return len(row), [
            Run(int(start), int(stop), f"value {row[start]}", -1 if row[start] == 0 else int(row[start]) - 1)
            for start, stop in itertools.pairwise(edges)
        ]
    return None


def _segments(edges: Int64Array) -> Iterator[Run]:
    for number, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        yield Run(start, stop, f"segment {number}", number)
