"""Opens datasets whose samples classes of the program make, joined by a join index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.assembly.opened_source import OpenedSource, order_samples
from energon_dali.assembly.options import DatasetOptions
from energon_dali.assembly.sample_loaders import FactoryLoader, JoinedSampleLoader, SampleFactory
from energon_dali.datasets.row_sources import Source
from energon_dali.metadataset.join.index_file import JoinIndexFile
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.metadataset.reference import SourceReference
from energon_dali.shards import ShardReader, StoragePath, WebdatasetFolder


@dataclass(frozen=True)
class FactoryColumn:
    """One dataset of a join."""

    factory: SampleFactory
    """Makes its samples."""
    folder: WebdatasetFolder
    """Where they are."""
    shard_names: Sequence[str]
    """The shards that its split part names, in that order, excluded ones too: the index counts them."""


def open_factory_join(
    columns: Sequence[FactoryColumn],
    joiner: Callable[..., Any],
    names: Sequence[str] | None,
    reference: SourceReference,
    options: DatasetOptions,
) -> Source:
    """Returns the source of a join.

    Args:
        columns: The datasets, the primary one first.
        joiner: Makes one sample of theirs; receives None for a dataset without a match.
        names: Names of the joiner's arguments; None passes the samples by position.
        reference: Its path is that of the join index.
        options: Options of the call.

    Raises:
        ConfigError: An option is invalid for it.
        DatasetError: A dataset or the join index cannot be read, or does not fit.
        StorageError: A file cannot be read.
    """
    seed = options.worker_config.seed_offset
    loaders = [
        FactoryLoader(column.factory, dataset_path=column.folder.path, seed=seed, source_number=0) for column in columns
    ]
    readers = [ShardReader(column.folder, column.factory.part_filter) for column in columns]
    shards = []
    for column in columns:
        numbers = {name: number for number, name in enumerate(column.folder.shard_names)}
        shards.append([numbers[name] for name in column.shard_names])
    index = JoinIndexFile(StoragePath.of(reference.path), len(columns))
    reader = JoinedReader(index, readers, shards)
    load = JoinedSampleLoader(loaders, joiner, names, subflavors=dict(reference.subflavors), seed=seed)
    uuid = "+".join(column.folder.uuid for column in columns)
    name = getattr(joiner, "__qualname__", type(joiner).__name__)
    opened = OpenedSource(reader.ranges(reference.subset), reader, load, uuid, name)
    return order_samples(opened, reference, 0, options, repeat=False)
