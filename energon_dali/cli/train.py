"""`energon-dali train`: the train command of tasks."""

from __future__ import annotations

import sys

import click


@click.command(
    "train", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(arguments: tuple[str, ...]) -> None:
    """Train a task on a dataset: +task=NAME +dataset=NAME. The same as python -m energon_dali.tasks.train."""
    from energon_dali.tasks.train import command

    sys.argv = ["energon-dali train", *arguments]
    command()
