"""Options that `prepare` and `prepare-media` share, and the checks of images that they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import click

from energon_dali.cli.dataset_options import add_options
from energon_dali.cli.progress_bar import open_bar
from energon_dali.shards import PartFacts
from energon_dali.shards.prepare.shard_job import ShardScan

media_options = add_options(
    click.option(
        "--media-metadata-by-glob",
        metavar="GLOBS",
        help="Describe media whose names match one of these patterns, such as '*.jpg,*.mp4'.",
    ),
    click.option("--media-metadata-by-header", is_flag=True, help="Describe media, found by their first bytes."),
    click.option("--media-metadata-by-extension", is_flag=True, help="Describe media, found by their file suffix."),
)
"""Adds the three options `--media-metadata-by-*` to a command."""

scan_options = add_options(
    click.option("--num-workers", default=16, show_default=True, help="Processes, at most one per CPU core."),
    click.option(
        "--shards-in-flight",
        type=click.IntRange(1),
        default=32,
        show_default=True,
        help="Remote shards that are read at the same time, by all processes together.",
    ),
    click.option(
        "--ray",
        "ray_address",
        metavar="ADDRESS",
        help="Scan on a Ray cluster instead: auto, ray://HOST:10001, HOST:6379, or local for this machine.",
    ),
)
"""Adds the options about where shards are scanned to a command."""


def check_image(name: str, content: Callable[[], bytes]) -> PartFacts | None:
    """Returns the facts in an image's header, or None if the part is not an image. `prepare` runs it on every part.

    Args:
        name: Part name.
        content: Returns the content.

    Raises:
        DecodeError: The header cannot be parsed, or exceeds the limits of every decoder.
    """
    from energon_dali.decode.images import screen_image  # lazy: imports PIL, and `--help` should not wait for it
    from energon_dali.decode.part_kind import find_part_kind

    if find_part_kind(name)[0] != "image":
        return None
    header = screen_image(content())
    return PartFacts(header.to_label(), header.width, header.height)


def progress_bar(scans: Iterable[ShardScan], total: int) -> Iterable[ShardScan]:
    """Yields the shards and shows a progress bar on stderr, with the rate and the time left."""
    samples = size = 0
    began = time.monotonic()
    with open_bar(total=total, desc="Indexing shards", unit="shard") as bar:
        for scan in scans:
            samples += scan.num_samples
            if scan.is_known:  # found by an earlier run: it says nothing about the time left
                bar.initial += 1
            else:
                size += scan.shard_bytes
            rate = size / 1e6 / max(1e-3, time.monotonic() - began)
            bar.set_postfix_str(f"{samples:,} samples, {rate:,.0f} MB/s", refresh=False)
            bar.update()
            yield scan
        if bar.initial:
            bar.write(f"Took over {bar.initial:,} shards from an earlier run.", file=sys.stderr)
