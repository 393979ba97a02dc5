"""The facts by which samples can be sorted, and their values: from the index, from measures, or from a scan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetError, StorageError
from energon_dali.plan.measured import NOT_MEASURED, TEXT_TOKENS, TOKENS, VISION_TOKENS
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.places import MeasuredData, measure_files, stale_reason
from energon_dali.shards.storage import StoragePath
from energon_dali.view.dataset import JsonlDataset, ViewedDataset
from energon_dali.view.scan import Scan

Float64Array = npt.NDArray[np.float64]

SORT_SECONDS = 300.0
"""Longest time of the query for the values of all samples, which nobody waits for."""
_MEASURE = "measure."
_FIELD = "field."
MAX_FIELDS = 64
"""Fields of JSON parts by which samples can be sorted: the first in the order of the alphabet."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """A fact by which samples can be sorted."""

    name: str
    """As an address has it."""
    label: str
    """For people."""
    origin: Literal["index", "scan", "measures"]
    """Where its values come from."""
    unit: str = ""
    """Unit of its values."""


_OF_INDEX = (SortKey("key", "key", "index"), SortKey("bytes", "size", "index", "bytes"))
_OF_IMAGES = (
    ("width", "width", "px"),
    ("height", "height", "px"),
    ("pixels", "number of pixels", "px"),
    ("aspect", "width / height", ""),
)
_OF_SCAN = {
    "width": "max(width)",
    "height": "max(height)",
    "pixels": "max(width * height)",
    "aspect": "max(CAST(width AS REAL) / height)",
    "duration": "max(duration)",
    "text_length": "sum(text_length)",
    "parts": "count(*)",
}
"""Expressions over the parts of a sample."""
_ONLY_SCANNED = (
    SortKey("duration", "duration", "scan", "s"),
    SortKey("text_length", "text length", "scan", "characters"),
    SortKey("parts", "number of parts", "scan"),
)


def sort_keys(dataset: ViewedDataset, scan: Scan, source: int) -> list[SortKey]:
    """Returns the facts by which the samples of a dataset can be sorted.

    Where a sample has several parts, it is the largest value that counts, or the sum of text lengths.

    Args:
        dataset: The dataset.
        scan: The scan.
        source: Number of the dataset in it.
    """
    origin: Literal["index", "scan"] = "index" if dataset.has_image_sizes else "scan"
    found = [*_OF_INDEX, *(SortKey(name, label, origin, unit) for name, label, unit in _OF_IMAGES), *_ONLY_SCANNED]
    columns = [(file.description.encoder, place, file.names) for place, file in _measures(dataset)]
    for encoder, place, names in columns:
        of = f" ({encoder})" if len(columns) > 1 else ""
        if {TEXT_TOKENS, VISION_TOKENS} <= set(names):
            names = (TOKENS, *names)  # their sum
        found += [SortKey(f"{_MEASURE}{_digest(place)}.{name}", f"{name}{of}", "measures") for name in names]
    return [*found, *(SortKey(f"{_FIELD}{name}", name, "scan") for name in _number_fields(scan, source))]


def _number_fields(scan: Scan, source: int) -> list[str]:
    """Returns the names of the fields of JSON parts that have numbers, as far as the dataset was scanned."""
    store = scan.store(source)
    if not store.num_scanned():
        return []
    names: list[str] = []
    # The table is ordered by name and value, with numbers first: each query looks at one row.
    with store.reading() as connection:
        (name,) = connection.execute("SELECT min(name) FROM fields").fetchone()
        while name is not None and len(names) < MAX_FIELDS:
            query = "SELECT typeof(value) FROM fields WHERE name = ? ORDER BY value LIMIT 1"
            if connection.execute(query, (name,)).fetchone()[0] in ("integer", "real"):
                names.append(name)
            (name,) = connection.execute("SELECT min(name) FROM fields WHERE name > ?", (name,)).fetchone()
    return names


def values_of(dataset: ViewedDataset, key: SortKey, numbers: Int64Array, scan: Scan, source: int) -> Float64Array:
    """Returns a fact of some samples.

    Args:
        dataset: The dataset.
        key: The fact.
        numbers: int64[n]: numbers of the samples.
        scan: The scan.
        source: Number of the dataset in it.

    Returns:
        float64[n]: NaN where it is not known. For keys, their positions in the order of the alphabet.

    Raises:
        DatasetError: An index or a measure file is damaged.
        StorageError: A file cannot be read.
    """
    if key.origin == "measures":
        return _measured(dataset, key, numbers)
    if key.origin == "scan":
        return _scanned(scan, source, key, dataset.num_samples)[numbers]
    return _indexed(dataset, key, numbers)


def _data_of(dataset: ViewedDataset) -> MeasuredData:
    return dataset.file if isinstance(dataset, JsonlDataset) else dataset.folder


def _digest(place: StoragePath) -> str:
    """Returns the part of a measure file's name that says which one it is."""
    return place.name.rpartition("measures-")[2].partition(".")[0]


def _measures(dataset: ViewedDataset) -> Iterator[tuple[StoragePath, MeasureFile]]:
    data = _data_of(dataset)
    try:
        for place, file in measure_files(data):
            if isinstance(file, MeasureFile):
                if not stale_reason(file.description, data):
                    yield place, file
                file.close()
    except (DatasetError, StorageError):  # samples can be sorted by other facts
        return


def _measured(dataset: ViewedDataset, key: SortKey, numbers: Int64Array) -> Float64Array:
    digest, _, name = key.name.removeprefix(_MEASURE).partition(".")
    for place, file in _measures(dataset):
        if _digest(place) == digest:
            values = file.take(name, numbers)
            return np.where(values == NOT_MEASURED, np.nan, values.astype(np.float64))
    return np.full(len(numbers), np.nan)


def _scanned(scan: Scan, source: int, key: SortKey, num_samples: int) -> Float64Array:
    """Returns float64[num_samples]: a fact of all samples."""
    store = scan.store(source)
    values = np.full(num_samples, np.nan)
    if not store.num_scanned():
        return values
    parameters: tuple[str, ...] = ()
    if key.name.startswith(_FIELD):
        parameters = (key.name.removeprefix(_FIELD),)
        query = "SELECT sample, value FROM fields WHERE name = ? AND typeof(value) IN ('integer', 'real')"
    else:
        # The table is ordered by sample, so groups are read one after the other, and nothing is sorted.
        query = f"SELECT sample, {_OF_SCAN[key.name]} AS value FROM parts GROUP BY sample HAVING value IS NOT NULL"
    kind = np.dtype([("sample", np.int64), ("value", np.float64)])
    with store.reading(seconds=SORT_SECONDS) as connection:
        rows: Any = np.fromiter(connection.execute(query, parameters), kind)
    known = rows[(rows["sample"] >= 0) & (rows["sample"] < num_samples)]
    np.fmax.at(values, known["sample"], known["value"])
    return values


def _indexed(dataset: ViewedDataset, key: SortKey, numbers: Int64Array) -> Float64Array:
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    borders = np.asarray(dataset.shard_starts)
    found = np.full(len(numbers), np.nan)
    names: list[bytes] = [b""] * len(numbers) if key.name == "key" else []
    cuts = np.searchsorted(ascending, borders)
    for shard in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
        start, stop = int(cuts[shard]), int(cuts[shard + 1])
        inside = ascending[start:stop] - borders[shard]
        if key.name == "key":
            for position, name in zip(order[start:stop].tolist(), _keys(dataset, shard, inside), strict=True):
                names[position] = name
        else:
            found[order[start:stop]] = _of_shard(dataset, shard, key)[inside]
    if names:
        _, ranks = np.unique(np.array(names, object), return_inverse=True)
        return ranks.astype(np.float64)
    return found


def _keys(dataset: ViewedDataset, shard: int, inside: Int64Array) -> list[bytes]:
    extents = dataset.extents(shard)
    if extents is None:  # lines have no other key than their number
        return [b"%020d" % number for number in inside.tolist()]
    starts = extents.array("key_start").astype(np.int64)
    blob = bytes(extents.keys)
    return [blob[starts[number] : starts[number + 1]] for number in inside.tolist()]


def _of_shard(dataset: ViewedDataset, shard: int, key: SortKey) -> Float64Array:
    """Returns a fact of all samples of a shard, NaN where the index does not have it."""
    start, stop = dataset.shard_starts[shard], dataset.shard_starts[shard + 1]
    if key.name == "bytes":
        return dataset.sample_bytes(start, stop).astype(np.float64)
    found = np.full(stop - start, np.nan)
    extents = dataset.extents(shard)
    if extents is None:
        return found
    width = extents.array("part_width").astype(np.float64)
    height = extents.array("part_height").astype(np.float64)
    known = np.flatnonzero((width > 0) & (height > 0))
    width, height = width[known], height[known]
    values = {"width": width, "height": height, "pixels": width * height, "aspect": width / height}[key.name]
    owners = np.searchsorted(extents.array("first_part").astype(np.int64), known, "right") - 1
    np.fmax.at(found, owners, values)
    return found
