"""What all pages share: the datasets, the scan, the searches, and how numbers are written."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from energon_dali.errors import ConfigError, DatasetError
from energon_dali.shards.documents.content import show_bytes
from energon_dali.shards.sample_keys import find_all_samples
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.subset_file import read_subset_file
from energon_dali.view.blended import BlendedSamples
from energon_dali.view.catalog import Catalog, CatalogEntry, ViewOptions
from energon_dali.view.chosen import ChosenSamples, Tags, rows_among
from energon_dali.view.dataset import JsonlDataset, ViewedDataset
from energon_dali.view.encoded import EncodedViews
from energon_dali.view.encoder_session import load_encoder
from energon_dali.view.query import GridQuery
from energon_dali.view.run import Run, open_run
from energon_dali.view.sample_facts import SampleCheck
from energon_dali.view.scan import Scan
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.selection import ScanPages, Search, SearchCache, Selection, index_answers
from energon_dali.view.sort_keys import SortKey, sort_keys, values_of
from energon_dali.view.sorted_samples import SortedSamples
from energon_dali.view.thumbnail import StoredPixels
from energon_dali.view.viewed_sample import Page, Rows

_SORT_KEYS_SECONDS = 30.0
"""How long the list of measures of a dataset is kept."""
_SORTED_AGAIN = 20
"""How often a list is sorted again while a scan finds the values."""
STATIC = Path(__file__).parent / "static"

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
"""The pages; every value in them is escaped."""
TEMPLATES.filters |= {
    "bytes": show_bytes,
    "number": "{:,}".format,  # thousands are separated
    # 100 % only if nothing is missing
    "percent": lambda share: "100 %" if share >= 1 else f"{min(99.9, share * 100):.1f} %",
}


class Site:
    """The datasets that are shown, and what was found out about them. Thread-safe.

    Args:
        options: Options of the command.
        scan_folder: Folder of scans; None is that in the user's cache.

    Raises:
        DatasetError: The path cannot be understood.
        ConfigError: An option is invalid.
        StorageError: A file cannot be read.
    """

    def __init__(self, options: ViewOptions, *, scan_folder: Path | None = None) -> None:
        self.options = options
        self.catalog = Catalog(options.path, dataset_config=options.dataset_config, split_config=options.split_config)
        opened = [entry for entry in self.catalog.entries if entry.dataset is not None]
        allowed = {"allow_imports": options.allow_imports, "allow_code": options.allow_code}
        sources = [ScanSource(entry.path, entry.dataset_config, entry.split_config, **allowed) for entry in opened]
        if not sources:
            raise ConfigError(f"{options.path} names no dataset. Add one to the metadataset.")
        self.scan = Scan(sources, folder=scan_folder)
        self._scan_numbers = {entry.number: number for number, entry in enumerate(opened)}
        self.check = SampleCheck(sources)
        self.pixels = StoredPixels()
        """Single pixels of images."""
        self.encoded: EncodedViews | None = None
        """What the task encoder makes of samples; None without one."""
        if options.encoder:
            load_encoder(options.encoder)  # raises for a mistake now, and not on the page
            self.encoded = EncodedViews(replace(options, path=self.catalog.path))
        self.blended = BlendedSamples(self.catalog, **allowed)
        """The samples of the blends of a metadataset, as one list each."""
        self._searches = SearchCache()
        self._chosen = {entry.number: ChosenSamples() for entry in opened}
        self._tags = {entry.number: Tags(entry.opened) for entry in opened}
        self._sort_keys: dict[int, tuple[float, list[SortKey]]] = {}
        if options.choose:
            self._choose(options.choose, opened)
        self.run: Run | None = None
        """The training run; None if none was given."""
        if options.run or options.loss:
            self.run = open_run(
                self.catalog,
                options.run,
                loss=options.loss,
                loss_name=options.loss_name,
                encoder=load_encoder(options.encoder) if options.encoder else None,
                **allowed,
            )
        self.version = secrets.token_hex(4)
        """Part of the addresses of thumbnails, which a browser must not take from the cache of another run."""

    def _choose(self, path: str, opened: list[CatalogEntry]) -> None:
        """Chooses the samples that a file of keys names.

        Raises:
            ConfigError: There are several datasets, or the file names samples that the dataset does not have.
            DatasetError: A line is malformed, or an index is damaged.
            StorageError: A file cannot be read.
        """
        if len(self.catalog.entries) > 1 or not opened:
            raise ConfigError(
                "--choose names samples of one dataset. Give the path of the dataset, not of a metadataset."
            )
        (entry,) = opened
        file = StoragePath.of(path)
        names = read_subset_file(file)
        dataset = entry.opened
        data = dataset.file if isinstance(dataset, JsonlDataset) else dataset.folder
        self.chosen(entry).change("only", find_all_samples(data, names, file.url))

    def scan_number(self, entry: CatalogEntry) -> int:
        """Returns the number that the scan has for a dataset."""
        return self._scan_numbers[entry.number]

    def chosen(self, entry: CatalogEntry) -> ChosenSamples:
        """Returns the samples of a dataset that the user chose.

        Raises:
            DatasetError: The dataset cannot be opened.
        """
        if entry.dataset is None:
            raise DatasetError(entry.error)
        return self._chosen[entry.number]

    def tags(self, entry: CatalogEntry) -> Tags:
        """Returns the tags of a dataset.

        Raises:
            DatasetError: The dataset cannot be opened.
        """
        if entry.dataset is None:
            raise DatasetError(entry.error)
        return self._tags[entry.number]

    def sort_keys(self, entry: CatalogEntry) -> list[SortKey]:
        """Returns the facts by which the samples of a dataset can be sorted; they are looked up again after a while.

        Raises:
            DatasetError: The dataset cannot be opened.
        """
        until, found = self._sort_keys.get(entry.number, (0.0, []))
        if time.monotonic() > until:
            found = sort_keys(entry.opened, self.scan, self.scan_number(entry))
            self._sort_keys[entry.number] = (time.monotonic() + _SORT_KEYS_SECONDS, found)
        return found

    def rows(self, entry: CatalogEntry, query: GridQuery) -> Rows:
        """Returns the samples of the split, the shards, the tag and the choice of a query; see `select`."""
        rows = entry.opened.rows(query.split or None)
        if query.shard:
            rows = rows_of_shards(entry.opened, rows, query.shard)
        if query.tag:
            rows = rows_among(rows, self.tags(entry).samples(query.tag))
        return rows_among(rows, self.chosen(entry).numbers) if query.chosen else rows

    def select(self, entry: CatalogEntry, query: GridQuery) -> Selection | SortedSamples:
        """Returns the samples that meet a query, in its order.

        Args:
            entry: The dataset.
            query: Its split, shard, conditions, tag and order.

        Raises:
            ConfigError: There is no such split or tag.
            DatasetError: The dataset or its index is damaged.
            StorageError: A file cannot be read.
        """
        dataset, rows = entry.opened, self.rows(entry, query)
        lists: tuple[object, ...] = ()
        if query.tag:
            lists += (query.tag, self.tags(entry).version(query.tag))
        if query.chosen:
            lists += (self.chosen(entry).version,)
        key = (entry.number, query.split, query.shard, query.wanted, *lists)
        sort = next((one for one in self.sort_keys(entry) if one.name == query.sort.removeprefix("-")), None)
        if query.wanted.is_empty:
            base: Selection = rows
        elif not index_answers(dataset, query.wanted):
            base = ScanPages(self.scan, self.scan_number(entry), rows, query.wanted)
        else:

            def search() -> Search:
                return Search(dataset, rows, query.wanted)

            # A sorted list has a search of its own: one of the cache may be ended before it is sorted.
            return self._searches.get(key, search) if sort is None else self._sorted(entry, search, sort, query, key)
        return base if sort is None else self._sorted(entry, lambda: base, sort, query, key)

    def list_version(self, selection: Selection | SortedSamples, page: Page) -> str:
        """Returns a text that changes when a list no longer has the same samples at the same positions.

        Args:
            selection: The list.
            page: Any page of it.
        """
        scanned = f"-{page.searched!r}" if isinstance(selection, ScanPages) else ""
        return f"{self.version}-{selection.digest}{scanned}"

    def _sorted(
        self,
        entry: CatalogEntry,
        base: Callable[[], Selection],
        sort: SortKey,
        query: GridQuery,
        key: tuple[object, ...],
    ) -> SortedSamples:
        """Returns samples in the order of a fact. While a scan finds it, they are sorted again from time to time."""
        source, descending = self.scan_number(entry), query.sort.startswith("-")
        waits = sort.origin == "scan" or not (query.wanted.is_empty or index_answers(entry.opened, query.wanted))
        share = self.scan.progress(source).share if waits else 1.0
        stage = _SORTED_AGAIN * share // 1 if share < 1 else _SORTED_AGAIN
        found = self._searches.get(
            (*key, sort.name, descending, stage),
            lambda: SortedSamples(
                base(),
                lambda numbers: values_of(entry.opened, sort, numbers, self.scan, source),
                descending=descending,
                waits_for_scan=sort.origin == "scan",
                share=lambda: self.scan.progress(source).share,
            ),
        )
        assert isinstance(found, SortedSamples), "no search has such a key"
        return found

    def render(self, template: str, **values: Any) -> str:
        """Returns a page. All values are escaped.

        Args:
            template: Name of its template.
            **values: What the template shows.
        """
        page = TEMPLATES.get_template(template).render(site=self, catalog=self.catalog, **values)
        return page.encode("utf-8", "replace").decode()  # JSON may hold halves of letters, which UTF-8 has no bytes for

    def stop(self) -> None:
        """Ends the scan, the encoder, the check of samples and all searches, for which a request may be waiting."""
        self.check.close()
        if self.encoded is not None:
            self.encoded.close()
        self._searches.close()
        self.scan.cancel()

    def close(self) -> None:
        """Stops everything, and closes all files, from which no request may be reading any more."""
        self.stop()
        self.catalog.close()


def rows_of_shards(dataset: ViewedDataset, rows: Rows, text: str) -> Rows:
    """Returns those rows that are in shards whose path contains a text.

    Args:
        dataset: The dataset.
        rows: The rows.
        text: Part of the path.
    """
    borders = dataset.shard_starts
    wanted = [number for number, name in enumerate(dataset.shard_names) if text in name]
    starts: list[int] = []
    lengths: list[int] = []
    ends = rows.starts + rows.lengths
    for number in wanted:
        first, stop = borders[number], borders[number + 1]
        for hit in np.flatnonzero((rows.starts < stop) & (ends > first)).tolist():
            start = max(first, int(rows.starts[hit]))
            starts.append(start)
            lengths.append(min(stop, int(ends[hit])) - start)
    return Rows(np.array(starts, np.int64), np.array(lengths, np.int64))
