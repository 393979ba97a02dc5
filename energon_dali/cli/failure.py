"""Turns this package's errors into messages of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from energon_dali.errors import EnergonDaliError


@contextmanager
def told_to_user() -> Iterator[None]:
    """Shows an error of this package as its message alone, and ends the command with exit status 1.

    Raises:
        click.ClickException: Any error of this package was raised inside.
    """
    try:
        yield
    except EnergonDaliError as error:
        raise click.ClickException(str(error)) from error
