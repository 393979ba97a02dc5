"""The `energon-dali` command: prepares datasets, describes them, looks into them."""

from __future__ import annotations

import click

from energon_dali import __version__
from energon_dali.cli.checkpoint import checkpoint
from energon_dali.cli.doctor import doctor
from energon_dali.cli.info import info
from energon_dali.cli.lint.command import lint
from energon_dali.cli.prepare import prepare
from energon_dali.cli.prepare_media import prepare_media


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="energon-dali")
def main() -> None:
    """Prepare and inspect datasets of tar shards."""


main.add_command(checkpoint)
main.add_command(doctor)
main.add_command(info)
main.add_command(lint)
main.add_command(prepare)
main.add_command(prepare_media)
