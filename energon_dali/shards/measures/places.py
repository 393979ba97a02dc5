"""Where the measure files of a dataset are: in its `.nv-meta`, or in the user's folder if that is read-only."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from energon_dali.errors import DatasetError, StorageError
from energon_dali.plan.measured import NOT_MEASURED
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.measures.description import Description
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath

VARIABLE = "ENERGON_DALI_MEASURES"
"""Folder for the measures of datasets that are read-only."""
_NAME = re.compile(r"(?:.*\.)?measures-[0-9a-f]{16}\.bin")

MeasuredData: TypeAlias = "WebdatasetFolder | JsonlFile"
"""A dataset that can be measured."""


def own_place(data: MeasuredData, digest: str) -> StoragePath:
    """Returns where a measure file is kept with its dataset.

    Args:
        data: The dataset.
        digest: Of the fingerprint, by which the file is named.
    """
    name = f"measures-{digest}.bin"
    if isinstance(data, JsonlFile):
        return StoragePath(f"{data.path}.{name}")
    return data.root / META / name


def users_place(data: MeasuredData, digest: str) -> StoragePath:
    """Returns where a measure file of a read-only dataset is kept; see `own_place`."""
    return _users_folder(data) / f"measures-{digest}.bin"


def may_write(data: MeasuredData) -> bool:
    """Returns whether measures can be kept with the dataset; for one in a store, writing shows it."""
    place = own_place(data, "")
    if not place.is_local:
        return not place.url.startswith(("http://", "https://"))
    return os.access(place.local.parent, os.W_OK)


def places_of(data: MeasuredData, digest: str) -> tuple[StoragePath, StoragePath]:
    """Returns where a measure file is looked for, in order."""
    return own_place(data, digest), users_place(data, digest)


def measure_files(data: MeasuredData) -> Iterator[tuple[StoragePath, MeasureFile | Exception]]:
    """Yields (path, the file or why it cannot be used) of all measure files of a dataset that can be listed."""
    own = own_place(data, "")
    folder = StoragePath(own.url.rpartition("/")[0])
    start = f"{data.name}." if isinstance(data, JsonlFile) else ""
    for place, begin in ((folder, start), (_users_folder(data), "")):
        names: list[str] = []
        with suppress(StorageError, OSError):  # web servers list nothing
            names = _listed(place)
        for name in sorted(names):
            if _NAME.fullmatch(name) and name.startswith(begin + "measures-"):
                try:
                    yield place / name, MeasureFile(place / name)
                except (DatasetError, StorageError, OSError) as error:
                    yield place / name, error


def _listed(folder: StoragePath) -> list[str]:
    return [entry.name for entry in os.scandir(folder.local)] if folder.is_local else folder.list_files()


def _users_folder(data: MeasuredData) -> StoragePath:
    given = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    folder = Path(given) if given else Path(home) / "energon-dali" / "measures"
    root = data.storage_path if isinstance(data, JsonlFile) else data.root
    name = re.sub(r"[^A-Za-z0-9._-]", "_", root.name)[:64]
    return StoragePath.of(folder) / f"{name}-{hashlib.blake2b(root.url.encode(), digest_size=8).hexdigest()}"


def shard_names_and_counts(data: MeasuredData) -> tuple[list[str], list[int]]:
    """Returns (names of the shards of a dataset, number of samples in each); a JSONL file is one shard."""
    if isinstance(data, JsonlFile):
        return [data.name], [data.num_samples]
    return data.shard_names, data.shard_counts


def stale_reason(description: Description, data: MeasuredData) -> str:
    """Returns why measures are not those of a dataset, as the end of a sentence; "" if they are."""
    shards = [(shard.name, shard.num_samples) for shard in description.shards]
    now = list(zip(*shard_names_and_counts(data), strict=True))
    if shards != now:
        changed = len(set(shards) ^ set(now))
        return f": there are others of {len(shards):,} shards, and it has {len(now):,}, of which {changed:,} differ"
    if description.uuid != data.uuid:
        return ": there are others of another index, since when it was prepared again"
    return ""


def measures_of_sample(data: MeasuredData, number: int) -> list[tuple[str, dict[str, int]]]:
    """Returns (task encoder, values by name) of a sample for each measure file of a dataset that is up to date.

    Args:
        data: The dataset.
        number: Number of the sample in it.

    Raises:
        DatasetError: A file is damaged.
        StorageError: A file cannot be read.
    """
    found = []
    for _, file in measure_files(data):
        if isinstance(file, MeasureFile) and not stale_reason(file.description, data):
            at = np.array([number])
            found.append((file.description.encoder, {name: int(file.take(name, at)[0]) for name in file.names}))
            file.close()
    return found


def describe_measures(values: dict[str, int]) -> str:
    """Returns the values of a sample as a line."""
    if all(value == NOT_MEASURED for value in values.values()):
        return "could not be measured"
    return ", ".join(f"{name} {value:,}" for name, value in values.items())
