"""The `energon-dali` command: prepares, describes and checks datasets, and trains tasks.

The commands that only read options and hand them on are here as well.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from energon_dali import __version__
from energon_dali.calls import describe_nearest
from energon_dali.errors import EnergonDaliError, StorageError

_HOMES = {
    "analyze-debug": "logs:analyze_debug",
    "bench": "bench:bench",
    "checkpoint": "checkpoint:checkpoint",
    "demo-data": "demo_data:demo_data",
    "doctor": "main:doctor",
    "failures": "logs:failures",
    "info": "info:info",
    "lint": "preview:lint",
    "measure": "measure:measure",
    "mount": "mount:mount",
    "pack": "pack:pack",
    "plan": "plan:plan",
    "prepare": "prepare:prepare",
    "prepare-media": "prepare:prepare_media",
    "preview": "preview:preview",
    "seen": "seen:seen",
    "train": "main:train",
    "tune": "bench:tune",
    "view": "preview:view",
}
"""Where each command is: module in this package, and name in it."""


class _Commands(click.Group):
    """Imports each command when it is used, which saves the time of importing the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _HOMES:
            return None
        module, _, name = _HOMES[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"energon_dali.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _HOMES and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. {describe_nearest(args[0], _HOMES)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EnergonDaliError as error:
            if ctx.invoked_subcommand == "train":  # which shows messages itself, and tracebacks where they are wanted
                raise
            from energon_dali.shards.documents.content import printable_lines  # lazy: `--help` should not wait for it

            raise click.ClickException(printable_lines(str(error))) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if traceback.extract_tb(error.__traceback__)[-1].name != click.echo.__name__:
                if error.filename is None:
                    raise
                click.echo(f"Error: {os.fsdecode(error.filename)}: {error.strerror}. Check the path.", err=True)
                sys.exit(1)
            # Discard the rest of the output, or Python would complain again at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
            click.echo(f"Error: Could not write the output: {error.strerror or error}.", err=True)
            sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="energon-dali")
def main() -> None:
    """Prepare and inspect datasets of tar shards, and train tasks on them."""


@click.command("doctor")
@click.option(
    "--device",
    "wanted",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="What must work: the CPU path (auto, cpu) or the GPU path; cpu does not check the GPU.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write it to a file.")
@click.option(
    "--simulate",
    type=(click.IntRange(1), click.IntRange(1)),
    metavar="RANKS CORES",
    help="Only show the threads, pipelines and memory that each rank of such a host with GPUs would use.",
)
def doctor(wanted: Any, json_file: Path | None, simulate: tuple[int, int] | None) -> None:
    """Say what this machine has and lacks for decoding, and what to do about it.

    Decodes an image and a video on each device and runs a kernel, each in its own process. The exit status is 1 if the
    path that --device asks for does not work.
    """
    if simulate is not None:
        from energon_dali.diagnosis.simulated_host import simulate_host

        for line in simulate_host(*simulate):
            click.echo(line)
        return
    from energon_dali.diagnosis import Host, diagnose
    from energon_dali.shards.storage.atomic_file import write_atomically

    diagnosis = diagnose(Host(), wanted)
    for line in diagnosis.lines():
        click.echo(line)
    if json_file is not None:
        try:
            write_atomically(json_file, (json.dumps(diagnosis.to_json(), indent=1) + "\n").encode())
        except StorageError as error:
            raise click.ClickException(f"--json {json_file} cannot be written. {error}") from error
    sys.exit(not diagnosis.works)


@click.command(
    "train", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(arguments: tuple[str, ...]) -> None:
    """Train a task on a dataset: +task=NAME +dataset=NAME. The same as python -m energon_dali.tasks.train."""
    from energon_dali.tasks.train import command

    sys.argv = ["energon-dali train", *arguments]
    command()
