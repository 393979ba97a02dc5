"""How many samples a leaf of a metadataset has, found without opening its shards."""

from __future__ import annotations

from energon_dali.metadataset.join.columns import find_join_index, open_columns
from energon_dali.metadataset.reference import LeafReference
from energon_dali.metadataset.subset import take_subset
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME


def count_samples(leaf: LeafReference) -> int:
    """Returns the number of samples of a leaf: of its split part, its subset, its join.

    Raises:
        DatasetError: Its files cannot be understood, or its join has no index.
        ConfigError: It has no such split part, or its subset reaches beyond the samples.
        StorageError: They cannot be read.
    """
    if leaf.join is not None:
        columns = open_columns(leaf.join.columns, leaf.place)
        total = len(find_join_index(leaf, columns).table)
    elif leaf.is_jsonl:
        total = JsonlFile(leaf.path).num_samples
    else:
        folder = WebdatasetFolder(
            leaf.path, dataset_config=leaf.dataset_config or DEFAULT_NAME, split_config=leaf.split_config
        )
        return take_subset(folder.split_ranges(leaf.split_part), folder.shard_counts, leaf.subset).num_samples
    first, last = (0, total) if leaf.subset is None else leaf.subset.bounds(total)
    return last - first
