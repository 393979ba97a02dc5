"""Makes sample keys unique in a dataset: rewrites the shards with the name of the shard before each key."""

from __future__ import annotations

import functools
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from energon_dali.errors import DatasetFormatError, ShardError, StorageError
from energon_dali.shards.index.tar_scan import TarMember, scan_tar, split_member_name
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import atomic_file


class DuplicateKeysError(DatasetFormatError):
    """Sample keys are not unique in the dataset.

    Args:
        message: What was given, what is allowed, what to do.
        in_one_shard: Whether a key is repeated within its shard, where a prefix does not help.
    """

    def __init__(self, message: str, in_one_shard: bool = False) -> None:
        super().__init__(message)
        self.in_one_shard = in_one_shard


def prefix_keys(path: str | StoragePath, shards: Sequence[str], *, num_workers: int = 1) -> None:
    """Rewrites local shards: `key.part` in `a/shard_0.tar` becomes `a/shard_0/key.part`.

    Each shard is written next to the old one, which it replaces when it is complete. The disk needs room for one shard
    per process. Members that do not belong to a sample stay as they are, and so do keys that begin with the shard's
    name already: an interrupted run can be repeated. Prepare the dataset afterwards.

    Args:
        path: Local folder of the dataset.
        shards: Tar files, relative to the folder.
        num_workers: Number of processes; see `prepare_dataset`.

    Raises:
        StorageError: The folder is not local.
        ShardError: A shard is damaged or cannot be written; it stays as it was.
    """
    root = StoragePath.of(path)
    _ = root.local
    for _done in map_in_order(functools.partial(_prefix_shard, root), shards, num_workers):
        pass


def _count_members(path: Path, shard: str) -> int:
    """Returns the number of regular files in a tar.

    Raises:
        ShardError: It is damaged, where tarfile would take the damage for its end.
    """
    with path.open("rb") as file:
        found = scan_tar(lambda offset, size: os.pread(file.fileno(), size, offset), path.stat().st_size, shard)
        return sum(isinstance(one, TarMember) for one in found)


def _prefix_shard(root: StoragePath, shard: str) -> str:
    path = (root / shard).local
    prefix = shard.removesuffix(".tar")
    copied = 0
    try:
        expected = _count_members(path, shard)
        with (
            atomic_file(path) as temporary,
            tarfile.open(path, "r:") as old,
            tarfile.open(temporary, "w:", format=tarfile.GNU_FORMAT) as new,
        ):
            for member in old:
                is_new = not member.name.startswith(f"{prefix}/")
                if is_new and member.isreg() and split_member_name(member.name) is not None:
                    member.name = f"{prefix}/{member.name}"
                    member.pax_headers = {}
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
                copied += member.isreg()
            if copied != expected:
                raise tarfile.ReadError(f"it has {expected} files, and tarfile found {copied}")
    except (tarfile.TarError, OSError, StorageError) as error:
        raise ShardError(
            f"{path} could not be written with unique keys: {error}. It stays as it was.", shard
        ) from error
    return shard
