"""What `energon-dali prepare` and `energon-dali info` do with a metadataset."""

from __future__ import annotations

from collections.abc import Iterator

import click

from energon_dali.errors import EnergonDaliError
from energon_dali.metadataset.document import YAML_SUFFIXES
from energon_dali.metadataset.loader import load_dataset, prepare_metadataset
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.metadataset.resolve import count_samples

_MODES = {
    "none": "one dataset",
    "weights": "drawn by weight, for ever",
    "repetitions": "each sample so often per epoch",
}


def is_metadataset(path: str) -> bool:
    """Returns whether a path names a metadataset."""
    return path.endswith(YAML_SUFFIXES)


def prepare_file(path: str) -> None:
    """Builds the join indices of a metadataset and says so.

    Raises:
        DatasetError: It cannot be understood, or its datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    indices = prepare_metadataset(path)
    for index in indices:
        click.echo(f"- {index}")
    click.echo("Done. The joins are indexed." if indices else "Done. There is nothing to prepare.")


def describe_file(path: str) -> Iterator[str]:
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
        return f"{count_samples(source):,}"
    except (EnergonDaliError, OSError) as error:
        return f"? ({type(error).__name__})"


def _name(source: SourceReference) -> str:
    if source.join is None:
        return source.path
    others = [f"{column.path} ({column.nonmatch})" for column in source.join.columns[1:]]
    return " + ".join([source.path, *others])
