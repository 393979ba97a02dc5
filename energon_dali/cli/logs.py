"""What the logs of a run say.

`energon-dali failures` lists the samples that it dropped, and `analyze-debug` shows how well samples were mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from energon_dali.cli.finite_range import FiniteRange
from energon_dali.diagnosis.debug_logs import DebugLogs, Deliveries, find_logs
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.content import printable, show_count
from energon_dali.shards.storage.atomic_file import atomic_file

if TYPE_CHECKING:
    from energon_dali.loader.failure_report import FailureGroup


@click.command("failures")
@click.argument(
    "paths", nargs=-1, required=True, metavar="LOG_OR_STATE...", type=click.Path(exists=True, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print the reasons as a list in JSON.")
def failures(paths: tuple[Path, ...], as_json: bool) -> None:
    """List the samples that a run dropped because of failures, by reason, from LOG_OR_STATE.

    A debug log (.jsonl) lists all reasons, with WorkerConfig(worker_log_level=1, worker_debug_path=...), and so does
    loader.stats().as_dict() as JSON. A saved state (.json, .pt, .pth) has the 16 most frequent, and so has a text log,
    in the lines of JSON that loaders print. Folders of these work too.

    For each reason there are the number of samples, the first of them, and the command that shows it.
    """
    from energon_dali.diagnosis.failure_logs import read_failures

    groups = read_failures(paths)
    if as_json:
        click.echo(json.dumps([{**group.as_dict(), "command": group.restore_command} for group in groups], indent=2))
        return
    for line in describe_failures(groups):
        click.echo(printable(line))


def describe_failures(groups: Sequence[FailureGroup]) -> Iterator[str]:
    """Yields lines about failures.

    Args:
        groups: The failures, the most frequent first.
    """
    if not groups:
        yield "No failures found."
        return
    total = sum(group.count for group in groups)
    reasons = "1 reason" if len(groups) == 1 else f"{len(groups):,} reasons"
    yield f"{total:,} {'sample' if total == 1 else 'samples'} dropped because of failures, for {reasons}:"
    for group in groups:
        yield ""
        yield f"{group.count:,} x {group.title}"
        if group.reason:
            yield f"    {' '.join(group.reason.split())}"
        where = f"    first: {group.place or '(no key)'}"
        if group.dataset:
            where += f", {'' if group.index < 0 else f'sample {group.index:,} of '}{group.dataset}"
        if group.place or group.dataset:
            yield where
        if group.restore_command:
            yield f"    {group.restore_command}"


_MODES = ("train", "val")
_SHOWN_RANKS = 16


@click.command("analyze-debug")
@click.argument("log_paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--heatmap-path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("heatmap.png"),
    show_default=True,
    help="The image to write.",
)
@click.option(
    "--heatmap-steps", type=click.IntRange(1, 65535), default=1000, show_default=True, help="Its most columns."
)
@click.option(
    "--heatmap-samples", type=click.IntRange(1, 65535), default=1000, show_default=True, help="Its most rows."
)
@click.option(
    "--heatmap-gain",
    type=FiniteRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="Factor for the brightness.",
)
@click.option(
    "--force-loading-order",
    is_flag=True,
    help="Show the order in which Energon's workers read samples, instead of what was delivered.",
)
@click.option(
    "--include-modality",
    default="train",
    show_default=True,
    metavar="A,B",
    help="Modes to include: train, val, or both.",
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, show_default=True, help="Steps to leave out at the start."
)
@click.option("--no-colors", is_flag=True, help="Do not give each rank a colour.")
def analyze_debug(
    log_paths: tuple[Path, ...],
    heatmap_path: Path,
    heatmap_steps: int,
    heatmap_samples: int,
    heatmap_gain: float,
    force_loading_order: bool,
    include_modality: str,
    skip: int,
    no_colors: bool,
) -> None:
    """Show the order in which samples were delivered, from the debug logs in LOG_PATHS (files, or folders of them).

    WorkerConfig(worker_log_level=1, worker_debug_path=...) writes these logs; Energon's logs are read as well. In the
    heatmap, a column is a step and a row is a sample, sorted by first delivery. A later epoch is another band, which
    is evenly scattered if the epoch is well shuffled.
    """
    modes = _chosen_modes(include_modality)
    files = find_logs(log_paths)
    click.echo(f"Analyzing {len(files):,} logs.")
    logs = DebugLogs(files)
    found = logs.loading_order(skip=skip) if force_loading_order else _deliveries(logs, modes, skip)
    if not len(found.steps):
        raise ConfigError(
            f"These logs name no sample after step {skip} of {include_modality}. Give a smaller --skip, or another "
            "--include-modality; batches that are logged need a __key__."
        )
    for line in describe_deliveries(found, files if force_loading_order else None):
        click.echo(line)
    image = found.heatmap(heatmap_samples, heatmap_steps, heatmap_gain, colours=not no_colors)
    with atomic_file(heatmap_path) as unfinished:
        image.save(unfinished, "PNG")
    click.echo(
        f"Wrote {heatmap_path}: {found.num_steps:,} steps from left to right, {found.num_samples:,} samples down."
    )


def _chosen_modes(text: str) -> list[str]:
    modes = [name.strip() for name in text.split(",")]
    for mode in modes:
        if mode not in _MODES:
            raise ConfigError(f"--include-modality {text!r} is invalid: {mode!r} is not one of {', '.join(_MODES)}.")
    return modes


def _deliveries(logs: DebugLogs, modes: list[str], skip: int) -> Deliveries:
    """Returns what the logs of this package, or one loader of Energon's logs, delivered."""
    loaders = logs.loaders(modes)
    if not loaders:
        return logs.deliveries(modes, skip=skip)
    for number, text in loaders.items():
        click.echo(f"  loader {number}: {text}")
    chosen = next(iter(loaders))
    if len(loaders) > 1:
        chosen = int(click.prompt("Loader", type=click.Choice([str(number) for number in loaders])))
    return logs.deliveries(modes, loader=chosen, skip=skip)


def describe_deliveries(found: Deliveries, files: list[Path] | None = None) -> Iterator[str]:
    """Yields lines about what was delivered.

    Args:
        found: At least one sample.
        files: The logs, if each of them counts for itself, instead of ranks.
    """
    times = np.bincount(found.samples)
    again = int((times > 1).sum())
    yield f"Found {show_count(found.num_samples, 'sample')} in {show_count(found.num_steps, 'step')}."
    yield f"  Delivered more than once: {show_count(again, 'sample')}" + (
        f", at most {int(times.max()):,} times" if again else ""
    )
    ranks, counts = np.unique(found.ranks, return_counts=True)
    for rank, count in list(zip(ranks.tolist(), counts.tolist(), strict=True))[:_SHOWN_RANKS]:
        steps = len(np.unique(found.steps[found.ranks == rank]))
        yield f"  {'Rank ' + str(rank) if files is None else files[rank]}: {count:,} samples in {steps:,} steps"
    if len(ranks) > _SHOWN_RANKS:
        yield f"  ... and {len(ranks) - _SHOWN_RANKS:,} more"
    if found.unreadable_lines:
        yield f"  Left out: {found.unreadable_lines:,} lines that are not entries of a debug log"
