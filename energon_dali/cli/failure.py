"""Turns this package's errors into messages of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from energon_dali.errors import EnergonDaliError


@contextmanager
def told_to_user() -> Iterator[None]:
    """Prints only the message of an error of this package, and ends the command with exit status 1.

    Raises:
        click.ClickException: An error of this package was raised inside.
    """
    try:
        yield
    except EnergonDaliError as error:
        raise click.ClickException(str(error)) from error
