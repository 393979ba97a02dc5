"""Chooses the samples of a dataset that the file of a subset names by their keys."""

from __future__ import annotations

from energon_dali.datasets.row_sources import RawReader
from energon_dali.errors import ConfigError
from energon_dali.metadataset.join.joined_reader import JoinedReader
from energon_dali.metadataset.reference import SourceReference
from energon_dali.plan.slices import Slices, filter_slices
from energon_dali.shards import JsonlReader, ShardReader
from energon_dali.shards.sample_keys import find_all_samples, is_among
from energon_dali.shards.subset_file import read_subset_file


def filter_by_keys(ranges: Slices, reader: RawReader, reference: SourceReference) -> Slices:
    """Returns the samples of a dataset that the file of its subset names; of a join, by the keys of its first dataset.

    Args:
        ranges: The samples of the split part and of the subset's range.
        reader: Reads the dataset.
        reference: Names it, and has the subset.

    Raises:
        ConfigError: The file is missing, or it names a sample that the dataset does not have.
        DatasetError: A line of the file is malformed, or an index is damaged.
        StorageError: A file cannot be read.
    """
    path = None if reference.subset is None else reference.subset.keys
    if path is None:
        return ranges
    names = read_subset_file(path)
    if isinstance(reader, ShardReader):
        numbers = find_all_samples(reader.folder, names, path.url)
    elif isinstance(reader, JsonlReader):
        numbers = find_all_samples(reader.file, names, path.url)
    elif isinstance(reader, JoinedReader):
        numbers = reader.rows_of(find_all_samples(reader.readers[0].folder, names, path.url))
    else:
        raise ConfigError(f"{reference.path} has no keys to choose samples by. Leave `keys` out of its subset.")
    return filter_slices(ranges, reader.shard_starts, lambda wanted: is_among(wanted, numbers))
