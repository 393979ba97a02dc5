"""`energon-dali doctor`: checks what this machine has and lacks, and says what to do about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from energon_dali.diagnosis import Host, WantedDevice, diagnose
from energon_dali.errors import StorageError
from energon_dali.shards.storage.atomic_file import write_atomically


@click.command()
@click.option(
    "--device",
    "wanted",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="What must work: the CPU path (auto, cpu) or the GPU path; cpu does not check the GPU.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write it to a file.")
def doctor(wanted: WantedDevice, json_file: Path | None) -> None:
    """Say what this machine has and lacks for decoding, and what to do about it.

    Decodes an image and a video on each device and runs a kernel, each in its own process. The exit status is 1 if the
    path that --device asks for does not work.
    """
    diagnosis = diagnose(Host(), wanted)
    for line in diagnosis.lines():
        click.echo(line)
    if json_file is not None:
        try:
            write_atomically(json_file, (json.dumps(diagnosis.to_json(), indent=1) + "\n").encode())
        except StorageError as error:
            raise click.ClickException(f"--json {json_file} cannot be written. {error}") from error
    sys.exit(not diagnosis.works)
