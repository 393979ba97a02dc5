"""Where an index is built, and by how many processes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath

BYTES_PER_WORKER = 256 << 20
"""Shards of this size take less time to scan than a process takes to start."""


def building_folder(root: StoragePath, tmp_path: Path | None) -> Path:
    """Returns a new local folder for files that are not whole yet; the caller removes it.

    Beside the finished files where that is possible: the temporary folder of the system is often too small.

    Raises:
        StorageError: It cannot be made.
    """
    parent = tmp_path if tmp_path is not None else (root / META).local if root.is_local else None
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".energon-dali-prepare-", dir=parent))
    except OSError as error:
        raise StorageError(
            f"No folder for the index can be made in {parent or tempfile.gettempdir()}: {error}. Give one with "
            "tmp_path."
        ) from error


def useful_workers(root: StoragePath, shards: Sequence[str], num_workers: int) -> int:
    """Returns how many processes are worth their start; small local datasets are scanned in this one."""
    if num_workers <= 1 or not root.is_local:
        return num_workers
    total = 0
    for shard in shards:
        path = (root / shard).local
        total += path.stat().st_size if path.is_file() else 0
        if total >= num_workers * BYTES_PER_WORKER:
            return num_workers
    return min(num_workers, total // BYTES_PER_WORKER + 1)
