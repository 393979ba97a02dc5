"""`energon-dali seen`: writes which samples a checkpoint has seen, and how often, without reading a sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energon_dali.calls import import_extra
from energon_dali.cli.dataset_options import code_options, counting_bar, find_encoder
from energon_dali.loader.loader_state import merge_states
from energon_dali.loader.state_file import find_state_files, read_state_file

if TYPE_CHECKING:
    from energon_dali.diagnosis.seen_samples import SeenSamples

_ROWS_AT_ONCE = 65_536


@click.command("seen")
@click.argument(
    "state_paths", metavar="STATE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option("--dataset", "path", metavar="PATH", required=True, help="The dataset of the job that saved the states.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The Parquet file to write."
)
@click.option("--keys/--no-keys", default=True, help="Look up the keys of the samples in the index. [default: keys]")
@click.option("--split-part", help="Part of the split. [default: as in the states]")
@click.option("--encoder", metavar="MODULE:NAME", help="Your task encoder: a class, instance or function.")
@code_options
def seen(
    state_paths: tuple[Path, ...],
    path: str,
    output: Path,
    keys: bool,
    encoder: str | None,
    **given: Any,
) -> None:
    """Write which samples a checkpoint has seen, and how often, into a Parquet file.

    STATE are the saved states of all ranks of a job with global batches (files, or a folder of them), or one of all
    ranks. How the job ordered its samples is in the states. Only indices are read.
    """
    from energon_dali.diagnosis.dataset_of_state import open_dataset_of
    from energon_dali.diagnosis.seen_samples import find_seen

    parquet = import_extra("pyarrow.parquet", "A Parquet file", "pack")
    states = [state for file in find_state_files(state_paths) for state in read_state_file(file).states]
    dataset = open_dataset_of(merge_states(states), path, task_encoder=find_encoder(encoder), **given)
    with counting_bar("Counting", "sample") as progress:
        found = find_seen(dataset, states, progress=progress)
    num_rows = write_parquet(found, output, parquet, keys=keys)
    for line in describe(found, num_rows, output):
        click.echo(line)
    for line in found.incomplete:
        click.echo(f"Incomplete: {line}", err=True)


def write_parquet(found: SeenSamples, output: Path, parquet: Any, *, keys: bool) -> int:
    """Writes a row per sample; returns their number.

    Args:
        found: The samples.
        output: The file.
        parquet: The module that writes it.
        keys: Look up the keys.

    Raises:
        StorageError: The file cannot be written.
    """
    import pyarrow

    from energon_dali.shards.storage.atomic_file import atomic_file

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    columns = {
        "dataset": text,
        "source": text,
        "shard": text,
        "index": pyarrow.int64(),
        "number": pyarrow.int64(),
        **({"key": pyarrow.string()} if keys else {}),
        "seen": pyarrow.int64(),
        "spare": pyarrow.int64(),
        "failed": pyarrow.int64(),
    }
    facts = {
        "energon_dali.step": str(found.cursor.step),
        "energon_dali.micro_batch": str(found.cursor.micro_batch),
        "energon_dali.complete": json.dumps(not found.incomplete),
        "energon_dali.incomplete": json.dumps(found.incomplete),
    }
    schema = pyarrow.schema(columns.items(), metadata=facts)
    num_rows = 0
    with atomic_file(output) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for rows in _chunks(_rows(found, keys=keys)):
            values = zip(*rows, strict=True)
            arrays = [pyarrow.array(column, kind) for column, kind in zip(values, columns.values(), strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            num_rows += len(rows)
    return num_rows


def _rows(found: SeenSamples, *, keys: bool) -> Iterator[tuple[Any, ...]]:
    for one in found:
        source = found.sources[one.source]
        known = source.reader.indexed(one.shard, one.index)
        key = (known.key,) if keys else ()
        yield (
            source.name,
            found.names[one.source],
            known.shard,
            one.index,
            one.number,
            *key,
            one.seen,
            one.spare,
            one.failed,
        )


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    rest = iter(rows)
    while chunk := list(islice(rest, _ROWS_AT_ONCE)):
        yield chunk


def describe(found: SeenSamples, num_rows: int, output: Path) -> Iterator[str]:
    """Yields lines about what was written."""
    begun = f", and {found.cursor.micro_batch} micro-batches of the next" if found.cursor.micro_batch else ""
    yield f"Wrote {output}: {num_rows:,} samples of {found.cursor.step:,} steps{begun}."
    yield (
        f"They were seen {found.num_seen:,} times, {found.num_spares:,} times in the place of another one; "
        f"{found.num_failed:,} failed."
    )
