"""The command: its options and its output."""

from __future__ import annotations

import functools
from typing import Any

import click

from energon_dali.cli.dataset_options import code_options
from energon_dali.shards.prepare.parallel import map_in_order


@click.command("lint")
@click.argument("path")
@click.option("--split-parts", metavar="A,B", help="Parts of the split; default is all.")
@click.option("--dataset-config", help="Name of the dataset configuration, if not dataset.yaml.")
@click.option("--split-config", help="Name of the split file, if not split.yaml.")
@click.option(
    "--decoder",
    type=click.Choice(["pil", "dali"]),
    default="pil",
    show_default=True,
    help="Decode images with PIL, or with DALI as a DaliDecoder does.",
)
@click.option("--parallel", type=click.IntRange(min=1, max=1024), default=1, show_default=True, help="Processes.")
@code_options
def lint(path: str, split_parts: str | None, decoder: str, parallel: int, **given: Any) -> None:
    """Look for errors in the dataset, the metadataset (.yaml), or the .jsonl file at PATH.

    Compares the indices with the shards, and reads and decodes every sample of the split as a loader would. Names each
    sample that fails, with its shard and the reason; the exit status is then 1. Audio and video are decoded to the
    end with PyAV. Cookers and other hooks do not run.
    """
    # Imported only here: the other commands start without the loader.
    from energon_dali.cli.lint.run import LintJob, Report, all_parts, join_reports, run_share

    options = {name: value for name, value in given.items() if value}
    parts = tuple(split_parts.split(",")) if split_parts else all_parts(path, options)
    job = LintJob(path, parts, decoder, options, parallel)
    reports: list[Report] = []
    for share in map_in_order(functools.partial(run_share, job), range(parallel), parallel):
        reports = share if not reports else [join_reports(*pair) for pair in zip(reports, share, strict=True)]
    for report in reports:
        count = "" if report.num_samples is None else f"{report.num_samples:,} samples, "
        click.echo(f"{report.name}: {count}errors: {len(report.flaws):,}")
        for flaw in sorted(report.flaws, key=lambda flaw: (flaw.shard, flaw.key)):
            click.echo(str(flaw))
    if any(report.flaws for report in reports):
        raise SystemExit(1)
    click.echo("Done. Nothing is wrong.")
