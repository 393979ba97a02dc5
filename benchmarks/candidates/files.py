"""The encoded media of a dataset in memory, for candidates that do not read shards."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from benchmarks.candidates.task import Task

MEDIA = ("jpg", "png", "webp", "bmp", "tif", "mp4", "webm")
"""Suffixes of images and videos."""


def read_media(task: Task) -> list[tuple[str, bytes]]:
    """Returns (key, content) of every image or video, in the order of the shards."""
    found = []
    for path, offset, size, key in locate_media(task):
        with open(path, "rb") as file:
            file.seek(offset)
            found.append((key, file.read(size)))
    return found


def locate_media(task: Task) -> list[tuple[str, int, int, str]]:
    """Returns (shard, offset, size, key) of every image or video."""
    found = []
    for shard in task.shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                key, _, suffix = member.name.partition(".")
                if suffix in MEDIA:
                    found.append((shard, member.offset_data, member.size, key))
    return found


def suffixes_of(task: Task) -> list[str]:
    """Returns the suffixes of media in the first shard, sorted: "mp4", or "jpg" and "png"."""
    with tarfile.open(task.shards[0], "r:") as tar:
        return sorted({member.name.partition(".")[2] for member in tar} & set(MEDIA))


def frames_in(task: Task) -> dict[str, int]:
    """Returns the number of frames of every video, by key."""
    facts = json.loads((Path(task.dataset) / "facts.json").read_text())
    return {key: int(fact[2]) for key, fact in facts.items()}
