"""What a page of the grid shows of chosen samples, tags and orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_dali.errors import ConfigError, DatasetError, EnergonDaliError, StorageError
from energon_dali.shards.sample_keys import is_among
from energon_dali.view.catalog import CatalogEntry
from energon_dali.view.query import GridQuery, read_query
from energon_dali.view.site import Site
from energon_dali.view.sort_keys import SortKey
from energon_dali.view.viewed_sample import ViewedSample


@dataclass(frozen=True, slots=True)
class GridChoice:
    """What a grid shows of chosen samples, tags and orders."""

    num_chosen: int
    """Number of chosen samples of the dataset."""
    on_page: frozenset[int]
    """Those of the page."""
    tags: list[tuple[str, int | None]]
    """(name, number of samples) of each tag; None if its file is damaged."""
    tags_of: dict[int, list[str]]
    """Tags of the samples of the page, by number."""
    sort_keys: list[SortKey]
    """Facts by which samples can be sorted."""
    sort: str
    """Name of the one by which they are."""
    descending: bool
    """Whether the largest is first."""


def grid_choice(site: Site, entry: CatalogEntry, query: GridQuery, samples: Sequence[ViewedSample]) -> GridChoice:
    """Returns what a page of the grid shows of chosen samples, tags and orders.

    Args:
        site: The site.
        entry: The dataset.
        query: What the page was asked for.
        samples: The samples of the page.
    """
    numbers = np.array([sample.index for sample in samples], np.int64)
    chosen, tags = site.chosen(entry), site.tags(entry)
    counts: list[tuple[str, int | None]] = []
    tags_of: dict[int, list[str]] = {}
    for name in tags.names():
        try:
            tagged = tags.samples(name)
        except (ConfigError, DatasetError, StorageError):  # the tag can still be removed
            counts.append((name, None))
            continue
        counts.append((name, len(tagged)))
        for number in numbers[is_among(numbers, tagged)].tolist():
            tags_of.setdefault(number, []).append(name)
    return GridChoice(
        len(chosen),
        frozenset(numbers[chosen.among(numbers)].tolist()),
        counts,
        tags_of,
        site.sort_keys(entry),
        query.sort.removeprefix("-"),
        query.sort.startswith("-"),
    )


def check_query(site: Site, entry: CatalogEntry, query: GridQuery) -> tuple[GridQuery, list[str]]:
    """Returns (a query without orders and tags that do not exist, what was left out, for people)."""
    wrong = []
    given = {**query.fields(), "page": str(query.page)}
    if query.sort and query.sort.removeprefix("-") not in {key.name for key in site.sort_keys(entry)}:
        wrong.append(f"Samples cannot be sorted by {query.sort.lstrip('-')!r}.")
        del given["sort"]
    if query.tag:
        try:
            site.tags(entry).samples(query.tag)
        except EnergonDaliError as error:
            wrong.append(str(error))
            del given["tag"]
    return (read_query(given)[0] if wrong else query), wrong
