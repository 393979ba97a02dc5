"""The samples of a blend as one list: in the order of training, or one dataset after the other."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypeAlias
from urllib.parse import urlencode

import numpy as np

from energon_dali.assembly.mixture import blended_plan, open_sources
from energon_dali.assembly.opened_source import open_source
from energon_dali.assembly.options import DatasetOptions
from energon_dali.errors import DatasetError, EnergonDaliError
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.plan.plan import Plan
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.view.catalog import Catalog, CatalogEntry
from energon_dali.view.query import DEFAULT_PAGE_SIZE, PAGE_SIZES
from energon_dali.view.viewed_sample import Rows
from energon_dali.worker_config import WorkerConfig

Order: TypeAlias = Literal["training", "dataset"]
DEFAULT_SAMPLES_PER_STEP = 1024
MOST_ROWS = 10**12
"""Position from which on no samples are shown: training goes on without an end."""
_MOST_WINDOW = 1 << 20
_KEPT_PLANS = 4


@dataclass(frozen=True, slots=True)
class OpenBlend:
    """A blend whose order is known."""

    blend: ResolvedBlend
    """Its datasets, and how they are put together."""
    readers: tuple[Any, ...]
    """What reads each dataset."""
    sizes: tuple[int, ...]
    """Number of samples of each dataset, in its part and its subset."""
    plan: Plan
    """Which dataset and sample comes when."""


def open_blend(
    path: str | Mapping[str, Any],
    split_part: str,
    *,
    num_streams: int,
    samples_per_step: int | None = None,
    seed_offset: int = 0,
    shuffle_buffer_size: int | None = None,
    allow_imports: bool = False,
    allow_code: bool = False,
) -> OpenBlend:
    """Opens the datasets of a blend as training does, and plans their order. Reads indices and splits, but no data.

    Args:
        path: A metadataset (.yaml, or a dict), a prepared folder or a .jsonl file.
        split_part: Part of the split.
        num_streams: Number of streams of the job. Global batches have one.
        samples_per_step: Draw as global batches of this size do, which weights that change over time need.
        seed_offset: Seed of the job.
        shuffle_buffer_size: Window of the sample shuffle, as in `get_train_dataset`.
        allow_imports: Import what the datasets name, as there.
        allow_code: Run code that is in the datasets, as there.

    Raises:
        ConfigError: There is no such split.
        DatasetError: A dataset cannot be opened.
        StorageError: A file cannot be read.
    """
    options = _options(
        split_part,
        num_streams=num_streams if samples_per_step is None else None,
        samples_per_step=samples_per_step,
        seed_offset=seed_offset,
        shuffle_buffer_size=shuffle_buffer_size,
        allowed={"allow_imports": allow_imports, "allow_code": allow_code},
    )
    blend, opened = open_sources(path, options)
    sources = [one.source for one in opened]
    readers = tuple(source.reader for source in sources)
    sizes = tuple(source.num_samples for source in sources)
    return OpenBlend(blend, readers, sizes, blended_plan(blend, sources, options))


def _options(
    split_part: str,
    *,
    num_streams: int | None = 1,
    samples_per_step: int | None = None,
    seed_offset: int = 0,
    shuffle_buffer_size: int | None = None,
    allowed: dict[str, bool],
) -> DatasetOptions:
    """Returns the options of a job that reads no data; see `open_blend`."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=num_streams, seed_offset=seed_offset)
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.cookers = (Cooker(lambda sample, **stores: sample),)
    return DatasetOptions.of_call(
        encoder,
        config,
        allowed,
        split_part=split_part,
        training=True,
        repeat=True,
        batch_size=samples_per_step,
        global_batch_size=samples_per_step,
        shuffle_buffer_size=shuffle_buffer_size,
    )


@dataclass(frozen=True, slots=True)
class BlendQuery:
    """What a page of a blend shows."""

    split: str
    """Split of the metadataset."""
    order: Order = "training"
    """In which order."""
    seed: int = 0
    """Seed of the job, `WorkerConfig.seed_offset`."""
    window: int = 0
    """Window of the sample shuffle, `shuffle_buffer_size`; 0 is none."""
    page: int = 1
    """Number of the page, from 1."""
    page_size: int = DEFAULT_PAGE_SIZE
    """Samples of a page."""

    @property
    def start(self) -> int:
        """Position of the first sample of the page."""
        return (self.page - 1) * self.page_size

    def on_page(self, page: int) -> BlendQuery:
        """Returns the same for another page."""
        return replace(self, page=page)

    def fields(self) -> dict[str, str]:
        """Returns what an address has of it, without the page; what is as usual is left out."""
        usual = BlendQuery(self.split)
        given = {"order": self.order, "seed": self.seed, "window": self.window, "size": self.page_size}
        known = {"order": usual.order, "seed": usual.seed, "window": usual.window, "size": usual.page_size}
        return {"split": self.split} | {name: str(value) for name, value in given.items() if value != known[name]}

    def address(self) -> str:
        """Returns the address of the page."""
        pairs = self.fields() | ({"page": str(self.page)} if self.page > 1 else {})
        return f"/blend?{urlencode(pairs)}"

    def address_of(self, sample: BlendedSample) -> str:
        """Returns the address of a sample, whose page leads on to those that follow it in the blend."""
        pairs = {"blend": self.split, **self.fields(), "at": str(sample.position)}
        pairs.pop("split")
        return f"/data/{sample.entry.number}/sample/{sample.index}?{urlencode(pairs)}"


def read_blend_query(given: Mapping[str, str], catalog: Catalog, split: str) -> BlendQuery:
    """Returns what an address asks for; what cannot be understood is as usual.

    Args:
        given: The fields of the address.
        catalog: The metadataset.
        split: The split that the address names.
    """

    def number(name: str, usual: int, most: int) -> int:
        text = given.get(name, "")
        return min(int(text), most) if text.isdecimal() and len(text) < 17 else usual

    size = number("size", DEFAULT_PAGE_SIZE, MOST_ROWS)
    size = size if size in PAGE_SIZES else DEFAULT_PAGE_SIZE
    return BlendQuery(
        split if split in catalog.sources else next(iter(catalog.sources), ""),
        "dataset" if given.get("order") == "dataset" else "training",
        number("seed", 0, 999_999_999),
        number("window", 0, _MOST_WINDOW),
        max(1, number("page", 1, MOST_ROWS // size)),
        size,
    )


@dataclass(frozen=True, slots=True)
class BlendedSample:
    """A sample of a blend."""

    position: int
    """Its position in the order, from 0."""
    source: int
    """Number of its dataset in the blend, from 0."""
    entry: CatalogEntry
    """Its dataset."""
    index: int
    """Index of the sample in the whole dataset."""
    passed: int = 0
    """How often training went through its dataset before."""


@dataclass(frozen=True, slots=True)
class BlendedPage:
    """Samples of a blend that follow each other."""

    samples: tuple[BlendedSample, ...]
    """The samples, in order."""
    total: int | None
    """Number of samples; None if there is no end."""
    problem: str = ""
    """Why the order is another one than was asked for; "" if it is not."""


Place: TypeAlias = tuple[int | None, dict[str, str | None], str]
"""Where a sample is in a list: (its position, addresses of the samples before and after, address of the list)."""


class BlendedSamples:
    """The samples of the blends of a metadataset, by position. Thread-safe.

    Args:
        catalog: The metadataset.
        allow_imports: Import what the datasets name, as in `get_train_dataset`.
        allow_code: Run code that is in the datasets, as there.
    """

    def __init__(self, catalog: Catalog, *, allow_imports: bool = False, allow_code: bool = False) -> None:
        self._catalog = catalog
        self._allowed = {"allow_imports": allow_imports, "allow_code": allow_code}
        self._lock = threading.Lock()
        self._opened: dict[tuple[str, int, int], OpenBlend] = {}
        self._subsets: dict[tuple[str, int], Rows | str] = {}

    def page(self, query: BlendQuery, start: int, stop: int) -> BlendedPage:
        """Returns the samples at positions start to stop (exclusive).

        The order of training needs all datasets, none of them joined. Without it, they follow each other, and the page
        says why.

        Args:
            query: Split and order.
            start: Position of the first sample.
            stop: Position after the last one.

        Raises:
            DatasetError: A split or an index is damaged.
            StorageError: A file cannot be read.
        """
        problem = ""
        if query.order == "training":
            try:
                return self._in_training(query, start, min(stop, MOST_ROWS))
            except (EnergonDaliError, OSError) as error:
                problem = f"The order of training is not known: {error}"
        return replace(self._by_dataset(query.split, start, stop), problem=problem)

    def _in_training(self, query: BlendQuery, start: int, stop: int) -> BlendedPage:
        with self._lock:
            opened = self._open(query)
            rows = opened.plan.rows(start, max(start, stop))
        samples = []
        for offset, (source, shard, inside, passed) in enumerate(rows.as_tuples()):
            entry = self._catalog.entry_of_source(query.split, source)
            assert entry is not None, "the plan and the catalog have the same datasets"
            index = opened.readers[source].index_of(shard, inside)
            samples.append(BlendedSample(start + offset, source, entry, index, passed))
        return BlendedPage(tuple(samples), None)

    def _open(self, query: BlendQuery) -> OpenBlend:
        key = (query.split, query.seed, query.window)
        found = self._opened.pop(key, None)
        if found is None:
            found = open_blend(
                self._catalog.path,
                query.split,
                num_streams=1,
                samples_per_step=DEFAULT_SAMPLES_PER_STEP if query.split in self._catalog.schedules else None,
                seed_offset=query.seed,
                shuffle_buffer_size=query.window or None,
                **self._allowed,
            )
            if any(isinstance(reader, JoinedReader) for reader in found.readers):
                raise DatasetError("It has joined datasets, whose samples are made of several rows.")
        self._opened[key] = found  # the one that was used last is the last
        if len(self._opened) > _KEPT_PLANS:
            self._opened.pop(next(iter(self._opened)))
        return found

    def _by_dataset(self, split: str, start: int, stop: int) -> BlendedPage:
        lists = []
        for number, (entry, _) in enumerate(self.sources(split)):
            rows = self.rows(split, number)
            if isinstance(rows, Rows):
                lists.append((number, entry, rows))
        ends = list(accumulate(len(rows) for _, _, rows in lists))
        total = ends[-1] if ends else 0
        samples: list[BlendedSample] = []
        position = start
        while position < min(stop, total):
            at = bisect_right(ends, position)
            number, entry, rows = lists[at]
            before = ends[at] - len(rows)
            found = rows.take(position - before, min(stop, ends[at]) - before).tolist()
            samples += [BlendedSample(position + n, number, entry, index) for n, index in enumerate(found)]
            position = min(stop, ends[at])
        return BlendedPage(tuple(samples), total)

    def rows(self, split: str, number: int) -> Rows | str:
        """Returns the samples that a blend takes of one of its datasets, in its part and its subset.

        Args:
            split: Split of the metadataset.
            number: Number of the dataset in the blend, from 0.

        Returns:
            The samples, or why they are not known.

        Raises:
            DatasetError: A split or an index is damaged.
            StorageError: A file cannot be read.
        """
        entry, part = self.sources(split)[number]
        if entry.dataset is None:
            return entry.error
        reference = self._catalog.use_of_source(split, number).subset
        if reference is None:
            return entry.dataset.rows(part if part in entry.dataset.split_parts else None)
        with self._lock:
            found = self._subsets.get((split, number))
            if found is None:
                found = self._subsets[split, number] = self._rows_of_subset(split, reference)
            return found

    def _rows_of_subset(self, split: str, reference: SourceReference) -> Rows | str:
        try:
            source = open_source(reference, 0, _options(split, allowed=self._allowed), repeat=False)
        except (EnergonDaliError, OSError) as error:
            return str(error)
        ranges = source.plan.base
        starts = np.asarray(source.reader.shard_starts, np.int64)
        return Rows(starts[ranges.shard] + ranges.start, ranges.lengths)

    def place(self, given: Mapping[str, str]) -> Place | None:
        """Returns where a sample is in the blend that it was reached from; None if it was not.

        Args:
            given: The fields of its address.

        Raises:
            DatasetError: A split or an index is damaged.
            StorageError: A file cannot be read.
        """
        split, position = given.get("blend", ""), given.get("at", "")
        if split not in self._catalog.sources or not position.isdecimal() or len(position) > 12:
            return None
        query, at = read_blend_query(given, self._catalog, split), int(position)
        shown = self.page(query, max(0, at - 1), at + 2).samples
        found = {one.position: query.address_of(one) for one in shown}
        neighbours = {"previous": found.get(at - 1), "next": found.get(at + 1)}
        return at, neighbours, query.on_page(at // query.page_size + 1).address()

    def sources(self, split: str) -> Sequence[tuple[CatalogEntry, str]]:
        """Returns (dataset, part of its split) of each dataset of a blend, those that cannot be opened included."""
        return [(self._catalog.entries[number], part) for number, part in self._catalog.sources.get(split, [])]
