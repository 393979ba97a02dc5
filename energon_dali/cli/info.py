"""`energon-dali info`: describes a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from energon_dali.cli.dataset_options import is_jsonl, is_metadataset
from energon_dali.errors import ConfigError, DatasetFormatError, EnergonDaliError
from energon_dali.loader.state_file import SUFFIXES
from energon_dali.metadataset.loader import load_dataset
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.metadataset.resolve import count_samples
from energon_dali.shards import JsonlFile, WebdatasetFolder, sample_type_name
from energon_dali.shards.documents.content import show_bytes, show_count
from energon_dali.shards.measures import MeasureFile
from energon_dali.shards.measures.places import MeasuredData, measure_files, stale_reason
from energon_dali.shards.meta.document import META

_USUAL_ORDER = ("train", "val", "test")
_SHOWN_REASONS = 5
_MODES = {
    "none": "one dataset",
    "weights": "drawn by weight, indefinitely",
    "repetitions": "each sample this often per epoch",
}


@click.command("info")
@click.argument("path")
@click.option("--split-config", default="split.yaml", show_default=True, help="Name of the split file.")
@click.option("--dataset-config", default="dataset.yaml", show_default=True, help="Name of the dataset configuration.")
def info(path: str, split_config: str, dataset_config: str) -> None:
    """Summarise the prepared dataset, the metadataset (.yaml), or the .jsonl file at PATH."""
    if is_jsonl(path):
        lines = describe_jsonl(JsonlFile(path))
    elif is_metadataset(path):
        lines = describe_metadataset(path)
    else:
        _refuse_states(path)
        # Names of classes are shown and none is imported.
        folder = WebdatasetFolder(path, split_config=split_config, dataset_config=dataset_config, allow_imports=True)
        lines = describe(folder)
    for line in lines:
        click.echo(line)


def _refuse_states(path: str) -> None:
    """Names the command for saved loader states.

    Raises:
        ConfigError: The path is one, or a folder of them that is not a dataset.
    """
    given = Path(path)
    files = [given] if given.is_file() else list(given.iterdir()) if path and given.is_dir() else []
    others = any(file.is_dir() or file.suffix == ".tar" for file in files)
    if given.name != META and not others and any(file.suffix in SUFFIXES for file in files):
        raise ConfigError(
            f"{path} holds no dataset, but files that may be saved states. `energon-dali checkpoint info "
            f"{shlex.quote(path)}` shows loader states."
        )


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
    yield f"  Size:        {show_bytes(size)} in {show_count(len(folder.shard_names), 'shard')}"
    yield f"  Sample type: {sample_type}"
    yield f"  Index:       {folder.index.source}, {folder.uuid or 'no uuid'}"
    yield "  Splits:"
    for part in sorted(folder.split_parts, key=lambda part: (*_USUAL_ORDER, part).index(part)):
        ranges = folder.split_ranges(part)
        shards = len(set(ranges.shard.tolist()))
        share = 100 * ranges.num_samples / total if total else 0.0
        yield f"    {part}: {show_count(ranges.num_samples, 'sample')} ({share:.1f}%) in {show_count(shards, 'shard')}"
    yield from _measures(folder)


def describe_jsonl(file: JsonlFile) -> Iterator[str]:
    """Yields lines about a JSONL file.

    Raises:
        StorageError: It cannot be read.
    """
    yield f"Dataset {file.name}"
    yield f"  Path:        {file.path}"
    yield f"  Samples:     {file.num_samples:,}"
    yield f"  Size:        {show_bytes(file.storage_path.size())} in 1 file"
    yield "  Sample type: CrudeSample, with the part json"
    yield f"  Index:       {file.name}.idx, {file.uuid}"
    yield "  Splits:      none: every part is the whole file"
    yield from _measures(file)


def _measures(data: MeasuredData) -> Iterator[str]:
    """Yields lines about the measure files of a dataset; none if there are none."""
    for number, (path, file) in enumerate(measure_files(data)):
        if not number:
            yield "  Measures:"
        if not isinstance(file, MeasureFile):
            yield f"    {path.name} cannot be used: {file}"
            continue
        found = file.description
        stale = ", stale: energon-dali measure brings it up to date" if stale_reason(found, data) else ""
        yield f"    {found.encoder}: {found.num_measured:,} of {found.num_samples:,} samples, {path.name}{stale}"
        width = max(len(column.name) for column in found.columns)
        for column in found.columns:
            mean = column.total / max(1, found.num_measured)
            numbers = f"mean {mean:,.1f}, min {column.smallest:,}, max {column.largest:,}"
            yield f"      {column.name.ljust(width)}  {numbers}"
        for reason, count in found.reasons[:_SHOWN_REASONS]:
            yield f"      not measured: {count:,} x {reason}"
        file.close()


def describe_metadataset(path: str) -> Iterator[str]:
    """Yields lines about a metadataset: the datasets of each split, and their parts in the whole.

    Raises:
        DatasetError: It cannot be understood.
        ConfigError: A nested metadataset lacks a split.
        StorageError: A file cannot be read.
    """
    loader = load_dataset(path)
    yield f"Metadataset {path}"
    for split in getattr(loader, "split_parts", ()):
        blend = loader.resolve(split)
        yield f"  {split}: {len(blend.sources)} datasets, {_MODES[blend.mode]}"
        if blend.schedule is not None:
            last = blend.schedule.points[-1].at
            yield f"    These are the parts at the beginning. They change over {blend.schedule.over}, until {last:,}."
        yield from (f"    {line}" for line in _table(blend))


def _table(blend: ResolvedBlend) -> list[str]:
    rows = [("part", "samples", "split", "dataset")]
    for source in blend.sources:
        rows.append((_part(source), _count(source), source.split_part, _name(source)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join([*(c.rjust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows]


def _part(source: SourceReference) -> str:
    if source.weight is not None:
        return f"{source.weight:.2%}"
    return "" if source.repetitions is None else f"{source.repetitions:g} x"


def _count(source: SourceReference) -> str:
    try:
        count = f"{count_samples(source):,}"
        return count if source.subset is None or source.subset.is_range else f"up to {count}"
    except (EnergonDaliError, OSError) as error:
        return f"? ({type(error).__name__})"


def _name(source: SourceReference) -> str:
    if source.join is None:
        return source.path
    others = [f"{column.path} ({column.nonmatch})" for column in source.join.columns[1:]]
    return " + ".join([source.path, *others])
