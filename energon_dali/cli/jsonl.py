"""What the commands do with a JSONL file: index it, and summarise it."""

from __future__ import annotations

from collections.abc import Iterator

import click
from tqdm import tqdm

from energon_dali.shards import JsonlFile, StoragePath, prepare_jsonl
from energon_dali.shards.index.jsonl_index import index_path

SUFFIX = ".jsonl"


def is_jsonl(path: str) -> bool:
    """Returns whether a command was given a JSONL file, by its name."""
    return path.rstrip("/").endswith(SUFFIX)


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
            f"{result.doubtful:,} lines do not begin with {{ and end with }}, and will fail if they are no JSON: "
            f"{numbers}{more} (counted from 0 without blank lines).",
            err=True,
        )
    click.echo(f"Done. Prepared {result.num_samples:,} samples.")


def describe_jsonl(file: JsonlFile) -> Iterator[str]:
    """Yields lines about a JSONL file.

    Raises:
        StorageError: It cannot be read.
    """
    from energon_dali.cli.info import format_size

    yield f"Dataset {file.name}"
    yield f"  Path:        {file.path}"
    yield f"  Samples:     {file.num_samples:,}"
    yield f"  Size:        {format_size(file.storage_path.size())} in 1 file"
    yield "  Sample type: CrudeSample, with the part json"
    yield f"  Index:       {file.name}.idx, {file.uuid}"
    yield "  Splits:      none: every part is the whole file"
