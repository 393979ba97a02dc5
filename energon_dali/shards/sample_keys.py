"""Finds samples of a dataset by their keys, in its index; no shard is opened."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import PurePosixPath
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.documents.content import excerpt_names
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.subset_file import SampleName

KeyedData: TypeAlias = "WebdatasetFolder | JsonlFile"
"""A dataset whose samples have keys."""

_LOOKED_AT = 500_000
"""Keys among which near misses are looked for."""
_NEIGHBOURS = 4
"""Keys before and after a missing one, in the order of the alphabet, that may be meant."""
_SHOWN = 5
_MOST_DIGITS = 18
_PAGES_KEPT_FOR = 64
"""Shards that are looked at before the pages of the index that were touched are given back."""


@dataclass
class FoundKeys:
    """What `find_samples` found."""

    numbers: Int64Array
    """int64[n]: numbers of the samples in the dataset, ascending, all different."""
    missing: list[SampleName]
    """Names that no sample has."""


def find_samples(data: KeyedData, names: Sequence[SampleName]) -> FoundKeys:
    """Returns the samples of a dataset that some names name. Keys are unique in a prepared dataset.

    If all names have a shard, only the index of these shards is read.

    Args:
        data: The dataset.
        names: Names of samples, all different.

    Raises:
        DatasetError: The index is damaged.
        StorageError: It cannot be read.
    """
    if isinstance(data, JsonlFile):
        return _find_lines(data, names)
    anywhere: dict[bytes, SampleName] = {}
    by_shard: dict[str, dict[bytes, SampleName]] = defaultdict(dict)
    for name in names:
        (by_shard[name.shard] if name.shard else anywhere)[_stored(name.key)] = name
    numbers: list[int] = []
    hits: set[SampleName] = set()
    starts = [0, *accumulate(data.shard_counts)]
    looked_at = 0
    for shard, shard_name in enumerate(data.shard_names):
        here = by_shard.get(shard_name)
        if not anywhere and here is None:
            continue
        looked_at += 1
        for index, key in enumerate(_keys_of(data, shard)):
            for wanted in (anywhere, here):
                hit = None if wanted is None else wanted.get(key)
                if hit is not None:
                    numbers.append(starts[shard] + index)
                    hits.add(hit)
        if looked_at % _PAGES_KEPT_FOR == 0:
            data.index.release_pages()
    return FoundKeys(np.unique(np.array(numbers, np.int64)), [name for name in names if name not in hits])


def find_all_samples(data: KeyedData, names: Sequence[SampleName], origin: str) -> Int64Array:
    """Returns the numbers of the samples that some names name, all of which have to be there.

    Args:
        data: The dataset.
        names: Names of samples, all different.
        origin: Path of the file that has them, for messages.

    Returns:
        int64[n]: ascending.

    Raises:
        ConfigError: Some name no sample; the message has the first of them, their number, and similar keys of the
            dataset.
        DatasetError: The index is damaged.
        StorageError: It cannot be read.
    """
    found = find_samples(data, names)
    if found.missing:
        raise ConfigError(
            f"{origin} names {len(found.missing):,} of {len(names):,} samples that {data.path} does not have: "
            f"{excerpt_names([str(name) for name in found.missing[:_SHOWN]])}"
            f"{_and_more(len(found.missing))}.{_near_misses(data, found.missing)} Take them out of the file, or give "
            "the file of this dataset."
        )
    return found.numbers


def is_among(numbers: Int64Array, found: Int64Array) -> npt.NDArray[np.bool_]:
    """Returns bool[n]: which of some numbers are among others.

    Args:
        numbers: int64[n]: the numbers, in any order.
        found: int64[m]: the others, ascending.
    """
    if not len(found):
        return np.zeros(len(numbers), bool)
    at = np.minimum(np.searchsorted(found, numbers), len(found) - 1)
    among: npt.NDArray[np.bool_] = found[at] == numbers
    return among


def _and_more(number: int) -> str:
    return f" and {number - _SHOWN:,} more" if number > _SHOWN else ""


def _near_misses(data: KeyedData, missing: Sequence[SampleName]) -> str:
    """Returns a sentence with keys of the dataset that are similar to missing ones; "" if there are none."""
    if isinstance(data, JsonlFile):
        return f" The key of a sample is the number of its line, 0 to {data.num_samples - 1:,}."
    wrong = sorted({name.shard for name in missing if name.shard}.difference(data.shard_names))
    if wrong:
        near = difflib.get_close_matches(wrong[0], data.shard_names, 1, 0.5)
        return f" There is no shard {wrong[0]!r}{f'; there is {near[0]!r}' if near else ''}."
    known = sorted(islice(_all_keys(data), _LOOKED_AT))
    by_form: dict[str, str] = {}
    for key in known:
        by_form.setdefault(_form(key), key)
    for name in missing[:_SHOWN]:
        at = bisect_left(known, name.key)
        if at < len(known) and known[at] == name.key:
            return f" Another shard has {name.key!r}."
        around = known[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
        same = by_form.get(_form(name.key))
        near = [same] if same is not None else difflib.get_close_matches(name.key, around, 2, 0.6)
        if near:
            return f" For {name.key!r}, there is {' and '.join(map(repr, near))}."
    return ""


def _form(key: str) -> str:
    """Returns what of a key is left if it was written in another way: no folder, ending, zeros or capitals."""
    stem = PurePosixPath(key.strip().lower()).name.partition(".")[0]
    return stem.lstrip("0") or stem


def _all_keys(data: WebdatasetFolder) -> Iterator[str]:
    for shard in range(len(data.shard_names)):
        for key in _keys_of(data, shard):
            yield key.decode("utf-8", "replace")


def _keys_of(data: WebdatasetFolder, shard: int) -> list[bytes]:
    """Returns the keys of a shard, as they are stored."""
    extents = data.index.shard(shard)
    borders = extents.array("key_start").tolist()
    blob = bytes(extents.keys)
    return [blob[start:stop] for start, stop in pairwise(borders)]


def _stored(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _find_lines(data: JsonlFile, names: Sequence[SampleName]) -> FoundKeys:
    numbers: list[int] = []
    missing: list[SampleName] = []
    for name in names:
        key = name.key
        plain = key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS and str(int(key)) == key
        if name.shard in ("", data.name) and plain and int(key) < data.num_samples:
            numbers.append(int(key))
        else:
            missing.append(name)
    return FoundKeys(np.unique(np.array(numbers, np.int64)), missing)
