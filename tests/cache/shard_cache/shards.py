"""Files that stand for remote shards, read through a cache, and what its counters say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from energon_dali.cache.shard_cache import ShardCache
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.store import ReadScope, read_scope

BLOCK = 64 << 10


def shard(folder: Path, name: str, size: int) -> StoragePath:
    """Writes a shard of random bytes."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(Random(name).randbytes(size))
    return StoragePath.of(folder / name)


def cache_of(folder: Path, max_bytes: int | str = "64MiB", **options: Any) -> ShardCache:
    """Returns a cache that also keeps local shards, in small blocks."""
    return ShardCache(folder, max_bytes=max_bytes, cache_local=True, **{"block_bytes": BLOCK, **options})


@contextmanager
def counted(cache: ShardCache | None = None) -> Iterator[Counter[str]]:
    """Context manager in which a cache's counters are added up, without their prefix."""
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name.removeprefix("shard_cache.")] += amount

    with read_scope(ReadScope(count=count, shard_cache=cache)):
        yield counts


def files_in(folder: Path) -> dict[str, int]:
    """Returns the sizes of the files of a cache, by path."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def block_files(folder: Path) -> list[Path]:
    """Returns the files of cached blocks."""
    return sorted(path for path in folder.glob("*/blocks/*/*") if path.is_file())
