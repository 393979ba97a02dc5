"""What all pages share: the datasets, the scan, the searches, and how numbers are written."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.shards.documents.content import show_bytes
from energon_dali.view.blended import BlendedSamples
from energon_dali.view.catalog import Catalog, CatalogEntry, ViewOptions
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.encoded import EncodedViews
from energon_dali.view.encoder_session import load_encoder
from energon_dali.view.query import GridQuery
from energon_dali.view.sample_facts import SampleCheck
from energon_dali.view.scan import Scan
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.selection import ScanPages, Search, SearchCache, Selection, index_answers
from energon_dali.view.thumbnail import StoredPixels
from energon_dali.view.viewed_sample import Rows

STATIC = Path(__file__).parent / "static"

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
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
        self.version = secrets.token_hex(4)
        """Part of the addresses of thumbnails, which a browser must not take from the cache of another run."""

    def scan_number(self, entry: CatalogEntry) -> int:
        """Returns the number that the scan has for a dataset."""
        return self._scan_numbers[entry.number]

    def rows(self, entry: CatalogEntry, query: GridQuery) -> Rows:
        """Returns the samples of the split and the shards of a query; arguments and errors as in `select`."""
        rows = entry.opened.rows(query.split or None)
        return rows_of_shards(entry.opened, rows, query.shard) if query.shard else rows

    def select(self, entry: CatalogEntry, query: GridQuery) -> Selection:
        """Returns the samples that meet a query.

        Args:
            entry: The dataset.
            query: Its split, shard and conditions.

        Raises:
            ConfigError: There is no such split.
            DatasetError: The dataset or its index is damaged.
            StorageError: A file cannot be read.
        """
        dataset, rows = entry.opened, self.rows(entry, query)
        if query.wanted.is_empty:
            return rows
        if not index_answers(dataset, query.wanted):
            return ScanPages(self.scan, self.scan_number(entry), rows, query.wanted)
        key = (entry.number, query.split, query.shard, query.wanted)
        return self._searches.get(key, lambda: Search(dataset, rows, query.wanted))

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
