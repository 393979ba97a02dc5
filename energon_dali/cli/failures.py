"""`energon-dali failures`: lists the samples that a run dropped because of failures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
    for line in describe(groups):
        click.echo(line)


def describe(groups: Sequence[FailureGroup]) -> Iterator[str]:
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
        yield f"{group.count:,} x {group.kind}"
        if group.reason:
            yield f"    {' '.join(group.reason.split())}"
        where = f"    first: {group.place or '(no key)'}"
        if group.dataset:
            where += f", {'' if group.index < 0 else f'sample {group.index:,} of '}{group.dataset}"
        if group.place or group.dataset:
            yield where
        if group.restore_command:
            yield f"    {group.restore_command}"
