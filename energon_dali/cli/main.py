"""The `energon-dali` command: prepares, describes and checks datasets, and trains tasks."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import click

from energon_dali import __version__
from energon_dali.calls import describe_nearest
from energon_dali.errors import EnergonDaliError

_HOMES = {
    "analyze-debug": "analyze_debug:analyze_debug",
    "bench": "bench:bench",
    "checkpoint": "checkpoint:checkpoint",
    "demo-data": "demo_data:demo_data",
    "doctor": "doctor:doctor",
    "failures": "failures:failures",
    "info": "info:info",
    "lint": "lint.command:lint",
    "mount": "mount.command:mount",
    "pack": "pack:pack",
    "plan": "plan:plan",
    "prepare": "prepare:prepare",
    "prepare-media": "prepare_media:prepare_media",
    "preview": "preview:preview",
    "seen": "seen:seen",
    "train": "train:train",
    "tune": "bench:tune",
    "view": "view:view",
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
            raise click.ClickException(str(error)) from error

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
