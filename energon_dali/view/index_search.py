"""Finds samples by what the index holds: keys, sizes, formats; whole columns at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_dali.decode.formats import FORMATS
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import ShardExtents
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.scan_filter import SampleFilter

_INDEX_FIELDS = frozenset(
    ("key", "part", "format", "min_bytes", "max_bytes", "min_width", "max_width", "min_height", "max_height")
) | {"min_aspect", "max_aspect"}
_IMAGE_FIELDS = _INDEX_FIELDS - {"key", "part", "min_bytes", "max_bytes"}


def given_fields(wanted: SampleFilter) -> set[str]:
    """Returns the names of the conditions that a filter has."""
    empty = SampleFilter()
    return {name for name in SampleFilter.__dataclass_fields__ if getattr(wanted, name) != getattr(empty, name)}


def index_answers(dataset: ViewedDataset, wanted: SampleFilter) -> bool:
    """Returns whether the index holds all that a filter asks for; otherwise a scan has to.

    Args:
        dataset: The dataset.
        wanted: The filter.
    """
    fields = given_fields(wanted)
    if not fields <= _INDEX_FIELDS:
        return False
    return not fields & _IMAGE_FIELDS or (dataset.knows_image_sizes and wanted.format in ("", *FORMATS))


def search_shard(dataset: ViewedDataset, shard: int, start: int, stop: int, wanted: SampleFilter) -> Int64Array:
    """Returns the numbers within their shard of the samples that meet a filter, ascending.

    Args:
        dataset: The dataset.
        shard: Number of the shard.
        start: First sample of the shard to look at.
        stop: Sample after the last one.
        wanted: Conditions that `index_answers` accepts.

    Raises:
        DatasetError: An index is damaged.
        StorageError: It cannot be read.
    """
    extents = dataset.extents(shard)
    if extents is None:
        return _search_lines(dataset, start, stop, wanted)
    found = np.ones(stop - start, bool)
    if wanted.min_bytes is not None or wanted.max_bytes is not None:
        base = dataset.shard_starts[shard]
        found &= _within(dataset.sample_bytes(base + start, base + stop), wanted.min_bytes, wanted.max_bytes)
    sample_parts = extents.array("first_part")[start : stop + 1].astype(np.int64)
    first, end = int(sample_parts[0]), int(sample_parts[-1])
    if given_fields(wanted) & (_IMAGE_FIELDS | {"part"}):
        parts = np.flatnonzero(_matching_parts(extents, first, end, wanted)) + first
        owners = np.zeros(stop - start, bool)
        owners[np.searchsorted(sample_parts, parts, "right") - 1] = True
        found &= owners
    if wanted.key:
        found &= _has_key(extents, start, stop, wanted.key)
    return np.flatnonzero(found) + start


def _matching_parts(extents: ShardExtents, first: int, end: int, wanted: SampleFilter) -> npt.NDArray[np.bool_]:
    """Returns bool[end - first]: which parts meet all conditions on a part."""
    mask = np.ones(end - first, bool)
    if wanted.part:
        mask &= np.array([name == wanted.part for name in extents.part_names], bool)[
            extents.array("part_name")[first:end]
        ]
    if wanted.format:
        names = [text.partition(" ")[0] == wanted.format for text in extents.formats]
        mask &= np.array(names, bool)[extents.array("part_format")[first:end]]
    width = extents.array("part_width")[first:end].astype(np.int64)
    height = extents.array("part_height")[first:end].astype(np.int64)
    bounds = (wanted.min_width, wanted.max_width, wanted.min_height, wanted.max_height)
    if any(bound is not None for bound in (*bounds, wanted.min_aspect, wanted.max_aspect)):
        mask &= (width > 0) & (height > 0)
        mask &= _within(width, wanted.min_width, wanted.max_width)
        mask &= _within(height, wanted.min_height, wanted.max_height)
        if wanted.min_aspect is not None:
            mask &= width >= wanted.min_aspect * height
        if wanted.max_aspect is not None:
            mask &= width <= wanted.max_aspect * height
    return mask


def _within(values: Int64Array, least: int | None, most: int | None) -> npt.NDArray[np.bool_]:
    result = np.ones(len(values), bool)
    if least is not None:
        result &= values >= least
    if most is not None:
        result &= values <= most
    return result


def _has_key(extents: ShardExtents, start: int, stop: int, text: str) -> npt.NDArray[np.bool_]:
    """Returns bool[stop - start]: whose key contains a text. One search over all keys, which are end to end."""
    starts = extents.array("key_start")[start : stop + 1].astype(np.int64)
    base, wanted = int(starts[0]), text.encode("utf-8", "surrogateescape")
    blob = bytes(extents.keys[base : int(starts[-1])])
    result = np.zeros(stop - start, bool)
    ends = starts - base
    position = blob.find(wanted)
    while position >= 0:
        sample = int(np.searchsorted(ends, position, "right")) - 1
        if position + len(wanted) <= ends[sample + 1]:  # not across the border of two keys
            result[sample] = True
            position = blob.find(wanted, int(ends[sample + 1]))
        else:
            position = blob.find(wanted, position + 1)
    return result


def _search_lines(dataset: ViewedDataset, start: int, stop: int, wanted: SampleFilter) -> Int64Array:
    """Returns the lines of a JSONL file that meet a filter; a key is the number of a line."""
    if wanted.part not in ("", "json"):
        return np.zeros(0, np.int64)
    found = _within(dataset.sample_bytes(start, stop), wanted.min_bytes, wanted.max_bytes)
    if wanted.key:
        found &= np.fromiter((wanted.key in str(line) for line in range(start, stop)), bool, stop - start)
    return np.flatnonzero(found) + start
