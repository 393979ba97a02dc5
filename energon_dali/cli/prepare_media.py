"""`energon-dali prepare-media`: describes the media of a prepared dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from energon_dali.cli.media_options import media_options, progress_bar, scan_options
from energon_dali.shards.prepare.media_tables import add_media_metadata
from energon_dali.shards.prepare.parallel import usable_workers


@click.command("prepare-media")
@click.argument("path")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
@scan_options
@media_options
@click.option("--tmp-path", type=click.Path(path_type=Path), help="Folder for the table while it is built.")
def prepare_media(
    path: str,
    progress: bool,
    num_workers: int,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
    **given: Any,
) -> None:
    """Describe the media (sizes, formats, durations) of the prepared dataset or plain folder at PATH."""
    from energon_dali.decode.media_filter import MediaFilter  # lazy: imports PIL, and `--help` should not wait for it

    media = MediaFilter.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    if media is None:
        raise click.UsageError("Give one of --media-metadata-by-glob, -by-header and -by-extension.")
    shown = progress_bar if progress else None
    count = add_media_metadata(path, media, num_workers=usable_workers(num_workers), progress=shown, **given)
    click.echo(f"Done. Described {count:,} media.")
