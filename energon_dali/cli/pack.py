"""`energon-dali pack`: makes shards of images, tables, Hugging Face datasets and other shards."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import click
from tqdm import tqdm

from energon_dali.cli.media_options import check_image, progress_bar
from energon_dali.cli.progress_bar import open_bar
from energon_dali.pack.options import KINDS, NEEDS, PackOptions, parse_columns, parse_split
from energon_dali.pack.plan import Plan
from energon_dali.pack.reading import Source
from energon_dali.pack.record import Skipped
from energon_dali.pack.run import SKIPPED_NAME, PackResult, Watcher, pack_dataset
from energon_dali.pack.shard_job import STATE
from energon_dali.shards.documents.content import parse_bytes, printable, show_bytes, show_count

SHOWN_SKIPPED = 20


class _Progress(Watcher):
    """Says what was found, and shows a progress bar on stderr."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: tqdm[Any] | None = None
        self._bytes = 0

    def found(self, source: Source) -> None:
        click.echo(f"Found: {source.kind}")
        for line in source.describe():
            click.echo(line)

    def planning(self, samples: int) -> None:
        if self._bar is None:
            self._bar = open_bar(desc="Looking at samples", unit="sample", disable=not self._shown, leave=False)
        self._bar.update(samples - self._bar.n)

    def begin(self, plan: Plan, done_samples: int, done_shards: int) -> None:
        self.end()
        if done_shards:
            click.echo(f"{done_shards:,} of {show_count(len(plan.shards), 'shard')} already there.")
        self._bar = open_bar(
            total=plan.num_samples, initial=done_samples, desc="Packing", unit="sample", disable=not self._shown
        )

    def progress(self, samples: int, written_bytes: int) -> None:
        if self._bar is not None:
            self._bytes += written_bytes
            self._bar.set_postfix_str(show_bytes(self._bytes), refresh=False)
            self._bar.update(samples)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@click.command("pack")
@click.argument("source")
@click.argument("out")
@click.option("--kind", type=click.Choice(KINDS), default="auto", show_default=True, help="Kind of SOURCE.")
@click.option("--max-samples", default=10_000, show_default=True, help="Most samples in a shard.")
@click.option("--max-bytes", default="256MiB", show_default=True, help="Largest shard, such as 500MB or 1GiB.")
@click.option(
    "--split",
    multiple=True,
    metavar="RULES",
    help="Shares, such as train=0.9,val=0.1; or NAME:PATTERN, once per part, such as 'val:val/.*' for keys.",
)
@click.option("--split-seed", default=0, show_default=True, help="Seed of a split by shares.")
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle the samples; the default keeps their order.")
@click.option(
    "--columns",
    multiple=True,
    metavar="ROLE=COLUMN",
    help="Columns of a table: key, image, video, audio, caption, question, answers, label.",
)
@click.option(
    "--metadata", metavar="COLUMNS", help="Columns for the part json, with commas; '' for none. [default: all]"
)
@click.option(
    "--sample-type",
    type=click.Choice(("auto", *NEEDS)),
    default="auto",
    show_default=True,
    help="Sample type of the dataset.",
)
@click.option("--media-root", default="", metavar="FOLDER", help="Folder of a table's paths. [default: the table's]")
@click.option("--allow-outside", is_flag=True, help="Also pack files outside the source, by paths or links in it.")
@click.option("--strict", is_flag=True, help="Stop at the first sample that cannot be packed.")
@click.option("--check-media/--no-check-media", default=True, help="Check the header of every image.")
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one per CPU core, if useful]"
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Pack on a Ray cluster: auto, ray://HOST:10001, HOST:6379, or local for this machine.",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier run wrote.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def pack(
    source: str,
    out: str,
    max_bytes: str,
    split: tuple[str, ...],
    columns: tuple[str, ...],
    metadata: str | None,
    strict: bool,
    check_media: bool,
    workers: int | None,
    ray: str | None,
    overwrite: bool,
    progress: bool,
    **given: object,
) -> None:
    """Make tar shards of SOURCE in the folder OUT, and a dataset that is ready to be loaded.

    SOURCE is a folder of images, videos or audio with captions in files of the same name; a CSV, TSV, JSON or JSONL
    file that names files; conversations as LLaVA stores them; a Hugging Face dataset of Parquet or Arrow files; or tar
    shards. If a run is interrupted, the same command continues it.
    """
    options = PackOptions(
        max_bytes=parse_bytes(max_bytes, "--max-bytes", binary_letters=True),
        split=parse_split(split),
        columns=parse_columns(columns),
        metadata=None if metadata is None else tuple(name.strip() for name in metadata.split(",") if name.strip()),
        **given,  # type: ignore[arg-type]
    )
    watcher = _Progress(shown=progress)
    try:
        result = pack_dataset(
            source,
            out,
            options,
            num_workers=workers,
            ray_address=ray,
            check_part=check_image if check_media else None,
            strict=strict,
            overwrite=overwrite,
            watcher=watcher,
            prepare_progress=progress_bar if progress else None,
        )
    except KeyboardInterrupt:
        watcher.end()
        click.echo("Interrupted. Finished shards are kept: run the same command again to continue.", err=True)
        raise SystemExit(130) from None
    finally:
        watcher.end()
    _report(result)


def _report(result: PackResult) -> None:
    _report_skipped(result, result.skipped)
    if result.was_complete:
        click.echo("Everything was packed already. Give --overwrite to do it again.")
    size = show_bytes(sum(shard.size for shard in result.shards))
    click.echo(
        f"Packed {show_count(result.num_samples, 'sample')} into {show_count(len(result.shards), 'shard')}, {size}:"
    )
    for part, samples in result.split_samples.items():
        click.echo(f"- {part}: {show_count(samples, 'sample')}")
    empty = [part for part, samples in result.split_samples.items() if not samples]
    if empty:
        click.echo(f"Warning: {' and '.join(empty)} got no sample.", err=True)
    click.echo(f"\n{result.sample_type} samples. To load them:\n")
    click.echo(textwrap.indent(loading_code(result), "    "))


def _report_skipped(result: PackResult, skipped: Sequence[Skipped]) -> None:
    if not skipped:
        return
    click.echo(f"Left out {show_count(len(skipped), 'sample')}:", err=True)
    for bad in skipped[:SHOWN_SKIPPED]:
        click.echo(printable(f"  {bad.what}: {bad.reason}").encode("utf-8", "backslashreplace").decode(), err=True)
    if len(skipped) > SHOWN_SKIPPED:
        click.echo(f"  and {len(skipped) - SHOWN_SKIPPED:,} more", err=True)
    click.echo(f"All of them are listed in {result.out / STATE / SKIPPED_NAME}.", err=True)
    if len(skipped) > result.num_samples:
        click.echo(
            "Warning: these are more than half of all. If files were not found, give the folder that their paths are "
            "relative to with --media-root.",
            err=True,
        )


def loading_code(result: PackResult) -> str:
    """Returns the code that loads a packed dataset."""
    part = "train" if "train" in result.split_samples else next(iter(result.split_samples))
    split = "" if part == "train" else f"split_part={part!r}, "
    sizes = "batch_size=1, shuffle_buffer_size=100, max_samples_per_sequence=100"
    crude = result.sample_type == "CrudeSample"
    encoder = "task_encoder=Encoder(), " if crude else ""
    config = "worker_config=WorkerConfig.default_worker_config()"
    names = "Cooker, DefaultTaskEncoder, WorkerConfig" if crude else "WorkerConfig"
    lines = [f"from energon_dali import {names}, get_loader, get_train_dataset"]
    if crude:
        lines += [
            "class Encoder(DefaultTaskEncoder):",
            "    cookers = [Cooker(lambda sample: sample)]  # parts by name",
        ]
    lines.append(f"dataset = get_train_dataset({str(result.out)!r}, {split}{encoder}{sizes}, {config})")
    lines.append("for batch in get_loader(dataset): print(batch)")
    return "\n".join(lines)
