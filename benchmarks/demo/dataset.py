"""The dataset of the demo: a generated one, or that of the user, which is not changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.recipe import Recipe, make_dataset
from energon_dali.cli.main import main as energon_dali_command

CAPTIONS = Recipe(name="captions", samples=1500, shards=4, seed=7)
"""JPEG, PNG and WebP of 20 to 300 KB with captions."""
VIDEOS = Recipe(name="videos", samples=24, shards=4, seed=7, style="video", seconds=3)
"""H.264 videos of 3 seconds, 640 x 360, with captions."""

FIELD_MAP = '{"image": "jpg,png,webp", "caption": "txt"}'
FILM_FIELD_MAP = '{"video": "mp4", "context": "txt"}'


class NoDatasetError(Exception):
    """The given path has no shards."""


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """A prepared dataset."""

    path: str
    """Folder or URL with a .nv-meta folder."""
    origin: str
    """Description of its origin."""


def own_dataset(folder: Path, recipe: Recipe = CAPTIONS) -> DemoDataset:
    """Returns the generated dataset; creates and prepares it first if necessary."""
    root = make_dataset(recipe, folder)
    video = recipe.style == "video"
    if not (root / ".nv-meta" / "dataset.yaml").exists():
        sample_type, field_map = ("VidQASample", FILM_FIELD_MAP) if video else ("CaptioningSample", FIELD_MAP)
        _prepare(root, "--sample-type", sample_type, "--field-map", field_map)
    what = "videos that pan over photographs" if video else "crops of photographs"
    return DemoDataset(str(root), f"{recipe.samples} {what} in {recipe.shards} shards")


def users_dataset(data: str, folder: Path) -> DemoDataset:
    """Returns the user's dataset. An unprepared one is prepared in the folder of the demo, through links to its shards.

    Nothing is ever written into the user's folder.

    Args:
        data: Folder with tar shards; or folder or URL of a prepared dataset.
        folder: Where the demo may write.

    Raises:
        NoDatasetError: There are no shards.
    """
    if "://" in data or (Path(data) / ".nv-meta").is_dir():
        return DemoDataset(data, f"{data}, which is prepared")
    source = Path(data).resolve()
    shards = sorted(source.rglob("*.tar"))
    if not shards:
        raise NoDatasetError(
            f"{data} holds neither a .nv-meta folder nor a .tar file. Name a folder with tar shards, or the folder or "
            "URL of a prepared dataset."
        )
    overlay = folder / f"prepared-{source.name}"
    print(f"{data} is not prepared. Your folder stays as it is: {overlay} gets links to its shards and the index.")
    overlay.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        link = overlay / shard.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and os.readlink(link) == str(shard)):
            link.unlink(missing_ok=True)
            link.symlink_to(shard)
    _prepare(overlay, "--sample-type", "CrudeWebdataset")
    return DemoDataset(str(overlay), f"{data}, through {overlay}")


def _prepare(root: Path, *options: str) -> None:
    arguments = ["prepare", str(root), "--non-interactive", "--split-ratio", "1,0,0", "--force-overwrite"]
    print(f"energon-dali prepare {root}")
    energon_dali_command([*arguments, "--exclude-unreadable", *options], standalone_mode=False)
