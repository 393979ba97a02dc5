"""Preparing datasets by a function, as Energon's `BaseWebdatasetFactory.prepare_dataset` does."""

from __future__ import annotations

import functools
import os
import sys
import tarfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from energon_dali.compat.epath import EPath
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.braces import expand_braces
from energon_dali.shards.index.jsonl_index import prepare_jsonl
from energon_dali.shards.index.tar_scan import split_member_name
from energon_dali.shards.meta.splits import DEFAULT_NAME
from energon_dali.shards.prepare.dataset import SHUFFLE_SEED, prepare_dataset
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError, prefix_keys
from energon_dali.shards.prepare.media_tables import add_media_metadata
from energon_dali.shards.prepare.parallel import usable_workers

ProgressFunction = Callable[[Iterator[Any], int], Iterable[Any]]
"""Takes the results and their number; yields the same results and shows the progress."""


class MediaFilterStrategy(str, Enum):
    """How media are distinguished from other parts."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


@dataclass(frozen=True)
class MediaFilterConfig:
    """Which parts are media."""

    strategy: MediaFilterStrategy
    """How they are distinguished from other parts."""
    patterns: list[str] = field(default_factory=list)
    """Patterns of names, for GLOB."""

    @classmethod
    def parse(cls, glob: str | None, header: bool, extension: bool) -> MediaFilterConfig:
        """Returns the filter of three options, of which exactly one is given.

        Raises:
            ConfigError: None, or more than one, is given.
        """
        found = MediaFilter.parse(glob, header, extension)
        if found is None:
            raise ConfigError("Give exactly one of glob, header and extension.")
        return cls(MediaFilterStrategy(found.strategy), list(found.patterns))

    def to_filter(self) -> MediaFilter:
        """Returns the same as this package's own filter."""
        return MediaFilter(self.strategy.value, tuple(self.patterns))


class WebdatasetPreparator:
    """Indexes tar shards and splits them. All methods belong to the class."""

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | os.PathLike[str] | EPath,
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = DEFAULT_NAME,
        shuffle_seed: int | None = SHUFFLE_SEED,
        progress_fn: ProgressFunction = lambda results, total: results,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: MediaFilterConfig | None = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: Path | None = None,
    ) -> set[str]:
        """Indexes shards, writes `.nv-meta` without `dataset.yaml`, and returns the names of the parts, at most 50.

        Args:
            parent_path: Folder of the dataset.
            paths: Shards, relative to the folder; braces stand for several names. Samples are numbered in this order.
            split_parts_ratio: (part, weight) pairs; whole shards are divided in this proportion.
            split_parts_patterns: (part, regular expression of shard names) pairs instead.
            split_config: Name of the split file.
            shuffle_seed: Shuffles the shards before they are divided by ratio; None does not.
            progress_fn: Shows the progress over the shards.
            workers: Processes for large datasets, at most one per core.
            tar_index_only: Only write the indices of the shards.
            media_filter: Describe the media that it selects.
            fix_duplicates: Rewrite the shards with unique keys if keys are not unique.
            index_sqlite_tmp_path: File whose folder holds the index of a remote dataset while it is built.

        Raises:
            ConfigError: Neither or both kinds of split are given.
            DatasetError: The shards are damaged, or their keys not unique.
            StorageError: Something cannot be read or written.
        """
        if not tar_index_only and (split_parts_ratio is None) == (split_parts_patterns is None):
            raise ConfigError("prepare_dataset needs either split_parts_ratio or split_parts_patterns.")
        root = EPath(parent_path).storage_path
        shards = expand_braces(paths)

        prepare = functools.partial(
            prepare_dataset,
            root,
            shards=shards,
            split_ratio=None if split_parts_ratio is None else dict(split_parts_ratio),
            split_patterns=split_parts_patterns,
            split_config=split_config,
            shuffle_seed=shuffle_seed,
            num_workers=usable_workers(workers),
            media_filter=None if media_filter is None else media_filter.to_filter(),
            tar_index_only=tar_index_only,
            tmp_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent,
            progress=lambda scans, total: progress_fn(iter(scans), total),
        )
        with _main_not_imported():
            try:
                found = prepare()
            except DuplicateKeysError:
                if not fix_duplicates:
                    raise
                prefix_keys(root, shards, num_workers=usable_workers(workers))
                found = prepare()
        return set(found.part_names)

    @classmethod
    def add_media_metadata(
        cls,
        parent_path: str | os.PathLike[str] | EPath,
        *,
        media_filter: MediaFilterConfig,
        workers: int = 32,
        progress_fn: ProgressFunction = lambda results, total: results,
        index_sqlite_tmp_path: Path | None = None,
    ) -> int:
        """Describes the media of a prepared dataset, and returns how many there are.

        Args:
            parent_path: Folder of the dataset.
            media_filter: Selects the media.
            workers: Processes, at most one per core.
            progress_fn: Shows the progress over the shards.
            index_sqlite_tmp_path: File whose folder holds the table while it is built.

        Raises:
            DatasetError: The folder is not prepared, or shards are damaged.
            StorageError: Something cannot be read or written.
        """
        with _main_not_imported():
            counts = add_media_metadata(
                EPath(parent_path).storage_path,
                media_filter.to_filter(),
                num_workers=usable_workers(workers),
                tmp_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent,
                progress=lambda scans, total: progress_fn(iter(scans), total),
            )
        return counts.described

    @staticmethod
    def iter_dataset_content(
        path: str | os.PathLike[str] | EPath, extract_keys: Container[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """Yields the samples of one shard: the names of the parts, with the content of those that are wanted.

        Args:
            path: The shard.
            extract_keys: Names of parts whose content is read; others are None.
        """
        sample: dict[str, Any] = {}
        current = None
        with EPath(path).open("rb") as file, tarfile.open(fileobj=file, mode="r:*") as shard:
            for member in shard:
                names = split_member_name(member.name) if member.isreg() else None
                if names is None:
                    continue
                key, part = names
                if key != current and sample:
                    yield sample
                    sample = {}
                current = key
                content = shard.extractfile(member) if part in extract_keys else None
                sample[part] = None if content is None else content.read()
        if sample:
            yield sample


class JsonlPreparator:
    """Indexes JSONL files."""

    @classmethod
    def prepare_dataset(cls, path: str | os.PathLike[str] | EPath, **options: Any) -> int:
        """Writes the index of a JSONL file, and returns the number of its lines.

        Args:
            path: The file.
            **options: Energon's options for progress and processes, which have no effect: one pass indexes the file.

        Raises:
            DatasetFormatError: The file cannot be indexed.
        """
        return prepare_jsonl(EPath(path).storage_path).num_samples


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str] | EPath,
    media_filter: MediaFilterConfig,
    *,
    progress: bool = True,
    workers: int = 16,
    index_sqlite_tmp_path: Path | None = None,
) -> int:
    """Describes the media files of a plain folder, and returns how many there are.

    Args:
        root_path: The folder.
        media_filter: Selects the media.
        progress: Has no effect.
        workers: Processes, at most one per core.
        index_sqlite_tmp_path: File whose folder holds the table while it is built.

    Raises:
        StorageError: Something cannot be read or written.
    """
    return WebdatasetPreparator.add_media_metadata(
        root_path, media_filter=media_filter, workers=workers, index_sqlite_tmp_path=index_sqlite_tmp_path
    )


@contextmanager
def _main_not_imported() -> Iterator[None]:
    """Keeps processes that are spawned inside from importing the program's main module.

    Energon forks: its preparation scripts have no main guard, and would run again in every spawned process.
    """
    main = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        main.update(hidden)
