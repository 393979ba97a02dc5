"""Options that `prepare` and `prepare-media` share, and the checks of images that they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

import click
from tqdm import tqdm

from energon_dali.shards import PartFacts
from energon_dali.shards.prepare.shard_job import ShardScan

Command = TypeVar("Command", bound=Callable[..., object])


def media_options(command: Command) -> Command:
    """Adds the three options `--media-metadata-by-*` to a command."""
    for option in (
        click.option("--media-metadata-by-extension", is_flag=True, help="Describe media, found by their file suffix."),
        click.option("--media-metadata-by-header", is_flag=True, help="Describe media, found by their first bytes."),
        click.option(
            "--media-metadata-by-glob",
            metavar="GLOBS",
            help="Describe media whose names match one of these patterns, such as '*.jpg,*.mp4'.",
        ),
    ):
        command = option(command)
    return command


def check_image(name: str, content: Callable[[], bytes]) -> PartFacts | None:
    """Returns the facts in an image's header, or None if the part is not an image. `prepare` runs it on every part.

    Args:
        name: Part name.
        content: Returns the content.

    Raises:
        DecodeError: The header cannot be parsed, or exceeds the limits of every decoder.
    """
    from energon_dali.decode.part_kind import find_part_kind
    from energon_dali.decode.screen import screen_image  # lazy: imports PIL, and `--help` should not wait for it

    if find_part_kind(name)[0] != "image":
        return None
    header = screen_image(content())
    return PartFacts(header.to_label(), header.width, header.height)


def usable_workers(asked: int) -> int:
    """Returns the number of processes: at most the CPU cores that this process may use."""
    return max(1, min(asked, len(os.sched_getaffinity(0))))


def progress_bar(scans: Iterable[ShardScan], total: int) -> Iterable[ShardScan]:
    """Yields the shards and shows a progress bar on stderr."""
    samples = 0
    with tqdm(total=total, desc="Indexing shards", unit="shard") as bar:
        for scan in scans:
            samples += scan.num_samples
            bar.set_postfix_str(f"{samples:,} samples", refresh=False)
            bar.update()
            yield scan
