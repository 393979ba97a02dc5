"""What `energon-dali prepare` and `energon-dali info` do with a JSONL file and with a metadataset."""

from __future__ import annotations

from collections.abc import Iterator

import click
from tqdm import tqdm

from energon_dali.errors import EnergonDaliError
from energon_dali.metadataset.document import YAML_SUFFIXES
from energon_dali.metadataset.loader import load_dataset, prepare_metadataset
from energon_dali.metadataset.reference import ResolvedBlend, SourceReference
from energon_dali.metadataset.resolve import count_samples
from energon_dali.shards import JsonlFile, StoragePath, prepare_jsonl
from energon_dali.shards.documents.content import show_bytes
from energon_dali.shards.index.jsonl_index import index_path

_MODES = {
    "none": "one dataset",
    "weights": "drawn by weight, indefinitely",
    "repetitions": "each sample this often per epoch",
}


def is_jsonl(path: str) -> bool:
    """Returns whether a command was given a JSONL file, by its name."""
    return path.rstrip("/").endswith(".jsonl")


def index_jsonl(path: str, *, progress: bool, overwrite: bool, non_interactive: bool) -> None:
    """Indexes a JSONL file, and says what it found.

    Args:
        path: The file.
        progress: Show a progress bar.
        overwrite: Index it again without asking.
        non_interactive: Ask nothing.

    Raises:
        click.ClickException: It is indexed, and must not be again.
        DatasetFormatError: There is no such file, or no line in it.
        StorageError: It cannot be read, or the index not written.
    """
    if index_path(StoragePath.of(path)).is_file() and not overwrite:
        if non_interactive:
            raise click.ClickException("The file has already been prepared. Use --force-overwrite to do it again.")
        if not click.confirm("It seems the file had already been prepared. Do you want to continue?"):
            return
    with tqdm(desc="Indexing lines", unit="B", unit_scale=True, disable=not progress) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        result = prepare_jsonl(path, progress=show)
    if result.doubtful:
        numbers = ", ".join(map(str, result.first_doubtful))
        more = ", ..." if result.doubtful > len(result.first_doubtful) else ""
        click.echo(
            f"{result.doubtful:,} lines do not begin with {{ and end with }}, and will fail if they are not JSON: "
            f"{numbers}{more} (counted from 0 without blank lines).",
            err=True,
        )
    click.echo(f"Done. Prepared {result.num_samples:,} samples.")


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


def is_metadataset(path: str) -> bool:
    """Returns whether a path names a metadataset."""
    return path.endswith(YAML_SUFFIXES)


def index_joins(path: str) -> None:
    """Builds the join indices of a metadataset and says so.

    Raises:
        DatasetError: It cannot be understood, or its datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    indices = prepare_metadataset(path)
    for index in indices:
        click.echo(f"- {index}")
    click.echo("Done. The joins are indexed." if indices else "Done. There is nothing to prepare.")


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
        return f"{count_samples(source):,}"
    except (EnergonDaliError, OSError) as error:
        return f"? ({type(error).__name__})"


def _name(source: SourceReference) -> str:
    if source.join is None:
        return source.path
    others = [f"{column.path} ({column.nonmatch})" for column in source.join.columns[1:]]
    return " + ".join([source.path, *others])
