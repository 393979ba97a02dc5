"""`energon-dali measure`: counts the tokens of every sample before training, and what else a task encoder measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from energon_dali.cli.dataset_options import file_options, find_encoder
from energon_dali.cli.progress_bar import open_bar
from energon_dali.shards.documents.content import printable
from energon_dali.shards.prepare.parallel import usable_workers

if TYPE_CHECKING:
    from energon_dali.assembly.measuring import MeasureResult

_SHOWN_REASONS = 10


@click.command("measure")
@click.argument("path")
@click.option("--encoder", required=True, metavar="MODULE:NAME", help="Your task encoder: a class or function.")
@click.option("--num-workers", default=16, show_default=True, help="Processes, at most one per CPU core.")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Measure on a Ray cluster instead: auto, ray://HOST:10001, HOST:6379, or local for this machine.",
)
@click.option("--again", is_flag=True, help="Measure what was measured already, too.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
@file_options
def measure(
    path: str, encoder: str, num_workers: int, ray_address: str | None, again: bool, progress: bool, **given: Any
) -> None:
    """Measure every sample of the dataset, the metadataset (.yaml), or the .jsonl file at PATH.

    Runs the hooks of the task encoder before decoding, and stores the text and vision tokens of each sample and what
    its measure_sample hook returns: in PATH/.nv-meta, or in your own folder if that is read-only. After an interruption
    the same command continues; after new shards were prepared, it measures these.
    """
    from energon_dali.assembly.measuring import measure_datasets  # lazy: `--help` should not wait for torch

    with _Bar(progress) as bar:
        results = measure_datasets(
            path,
            find_encoder(encoder),
            num_workers=usable_workers(num_workers),
            ray_address=ray_address,
            again=again,
            progress=bar.show,
            **given,
        )
    for result in results:
        _report(result)


def _report(result: MeasureResult) -> None:
    if result.was_measured:
        click.echo(f"{result.path} is measured already: {result.file}")
        return
    taken = f", of which {result.num_taken_over:,} were known" if result.num_taken_over else ""
    click.echo(f"Measured {result.num_measured:,} of {result.num_samples:,} samples of {result.path}{taken}.")
    most = sorted(result.unmeasured.items(), key=lambda one: (-one[1].count, one[0]))
    for reason, one in most[:_SHOWN_REASONS]:
        click.echo(printable(f"  {one.count:,} not measured, {reason}, such as {one.example}"), err=True)
    click.echo(f"Wrote {result.file}")


class _Bar:
    """A progress bar on stderr for one dataset after the other."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bar: tqdm[Any] | None = None
        self._path = ""

    def show(self, path: str, done: int, total: int) -> None:
        if path != self._path or (self._bar is not None and done < self._bar.n):
            self.end()
        if self._bar is None:
            self._path = path
            name = path.rstrip("/").rpartition("/")[2]
            self._bar = open_bar(total=total, desc=f"Measuring {name}", unit=" samples", disable=not self._is_shown)
        self._bar.update(done - self._bar.n)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
