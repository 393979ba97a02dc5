"""The command `energon`, and `python -m energon_dali.compat -m megatron.energon.cli.main`: Energon's command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from energon_dali.cli import main as own
from energon_dali.compat.finder import VERSION


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs a command of `energon-dali`, with Energon's defaults where they differ, and exits.

    Args:
        args: The command and its arguments; None takes those of the process.
    """
    words = list(sys.argv[1:] if args is None else args)
    if words in (["-V"], ["--version"]):
        click.echo(f"megatron-energon {VERSION}")
        sys.exit()
    if words[:2] == ["checkpoint", "redist"]:
        words.insert(2, "--force-overwrite")  # Energon replaces files without asking
    own.main(args=words, prog_name="energon")
    sys.exit()


if __name__ == "__main__":
    main()
