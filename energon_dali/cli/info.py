"""`energon-dali info`: describes a dataset."""

from __future__ import annotations

from collections.abc import Iterator

import click

from energon_dali.cli.failure import told_to_user
from energon_dali.cli.single_file import (
    describe_jsonl,
    describe_metadataset,
    format_size,
    is_jsonl,
    is_metadataset,
)
from energon_dali.errors import DatasetFormatError
from energon_dali.shards import JsonlFile, WebdatasetFolder, sample_type_name

_USUAL_ORDER = ("train", "val", "test")


@click.command("info")
@click.argument("path")
@click.option("--split-config", default="split.yaml", show_default=True, help="Name of the split file.")
@click.option("--dataset-config", default="dataset.yaml", show_default=True, help="Name of the dataset configuration.")
def info(path: str, split_config: str, dataset_config: str) -> None:
    """Summarise the prepared dataset, the metadataset (.yaml), or the .jsonl file at PATH."""
    with told_to_user():
        if is_jsonl(path):
            for line in describe_jsonl(JsonlFile(path)):
                click.echo(line)
            return
        if is_metadataset(path):
            for line in describe_metadataset(path):
                click.echo(line)
            return
        # The class name is shown, nothing is loaded, so the dataset needs no trust.
        folder = WebdatasetFolder(
            path, split_config=split_config, dataset_config=dataset_config, trust_dataset_code=True
        )
        for line in describe(folder):
            click.echo(line)


def describe(folder: WebdatasetFolder) -> Iterator[str]:
    """Yields lines about a dataset.

    Raises:
        DatasetFormatError: A file of the dataset cannot be understood.
        StorageError: It cannot be read.
    """
    try:
        sample_type = sample_type_name(folder.dataset_config)
    except DatasetFormatError as error:
        sample_type = f"unknown ({error})"
    size = sum((folder.root / name).size() for name in folder.shard_names)
    total = folder.num_samples
    yield f"Dataset {folder.root.name}"
    yield f"  Path:        {folder.path}"
    yield f"  Samples:     {total:,}"
    yield f"  Size:        {format_size(size)} in {len(folder.shard_names):,} shards"
    yield f"  Sample type: {sample_type}"
    yield f"  Index:       {folder.index.source}, {folder.uuid or 'no uuid'}"
    yield "  Splits:"
    for part in sorted(folder.split_parts, key=lambda part: (*_USUAL_ORDER, part).index(part)):
        ranges = folder.split_ranges(part)
        shards = len(set(ranges.shard.tolist()))
        share = 100 * ranges.num_samples / total if total else 0.0
        yield f"    {part}: {ranges.num_samples:,} samples ({share:.1f}%) in {shards:,} shards"
