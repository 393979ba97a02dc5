"""What a full cache keeps, and what it evicts."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from energon_dali import ShardCache
from energon_dali.cache.shard_cache import block_store
from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, file_bytes
from energon_dali.cache.shard_cache.eviction import RUNNING_SECONDS, job_key
from energon_dali.cache.shard_cache.node_cache import NodeCache
from energon_dali.shards.storage import StoragePath
from tests.cache.shard_cache.shards import BLOCK, block_files, cache_of, counted, files_in, shard

SMALL_FILES_BYTES = 20 * PAGE_BYTES
"""What a cache of a few shards writes besides blocks: more than 20 pages less the size of a block."""


@pytest.fixture(autouse=True)
def _always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache looks for blocks to evict whenever it is full, however long that takes on this machine."""
    monkeypatch.setattr(block_store, "_CHEAP_SECONDS", float("inf"))


def room_for(blocks: int) -> int:
    """Returns the size of a cache with room for a number of blocks."""
    return blocks * file_bytes(BLOCK) + SMALL_FILES_BYTES


def cache_of_job(folder: Path, max_bytes: int, job: str) -> ShardCache:
    """Returns the cache of another job than that of this process."""
    cache = cache_of(folder, max_bytes)
    cache._node_cache = NodeCache(folder, max_bytes, BLOCK, job.encode().rjust(8), time.time())
    return cache


def finish(folder: Path, job: str) -> None:
    """Makes a job one that has not read anything for a while."""
    for file in folder.glob(f"*/jobs/{job.encode().rjust(8).hex()}-*"):
        os.utime(file, (0, time.time() - RUNNING_SECONDS - 1))


def read_all(cache: ShardCache, path: StoragePath) -> Counter[str]:
    """Reads a shard block by block, and returns what was counted."""
    content = path.local.read_bytes()
    reader = cache.open(path, len(content))
    with counted() as counts:
        for start in range(0, len(content), BLOCK):
            assert reader.read_at(start, BLOCK) == content[start : start + BLOCK]
    return counts


def test_a_full_cache_keeps_what_is_there(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 8 * BLOCK)
    cache = cache_of(tmp_path / "cache", room_for(4))
    assert read_all(cache, path)["misses"] == 8
    kept = block_files(tmp_path / "cache")
    assert sorted(file.name for file in kept) == [f"{number}-{BLOCK}" for number in range(4)]
    for _ in range(3):
        assert read_all(cache, path) == {
            "hits": 4,
            "bytes_local": 4 * BLOCK,
            "misses": 4,
            "bytes_remote": 4 * BLOCK,
        }
        assert block_files(tmp_path / "cache") == kept


def test_a_full_cache_fetches_only_what_is_wanted(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 8 * BLOCK)
    cache = cache_of(tmp_path / "cache", room_for(4))
    read_all(cache, path)
    with counted() as counts:
        assert cache.open(path, 8 * BLOCK).read_at(6 * BLOCK + 5, 100) == path.local.read_bytes()[6 * BLOCK + 5 :][:100]
    assert counts == {"misses": 1, "bytes_remote": 100}


def test_blocks_of_a_finished_job_go_for_those_of_a_running_one(tmp_path: Path) -> None:
    old, new = (shard(tmp_path / name, "a.tar", 6 * BLOCK) for name in ("old", "new"))
    home = tmp_path / "cache"
    read_all(cache_of_job(home, room_for(4), "first"), old)
    finish(home, "first")
    second = cache_of_job(home, room_for(4), "second")
    counts = read_all(second, new)
    assert (counts["misses"], counts["evicted_bytes"]) == (6, 4 * BLOCK)
    assert read_all(second, new)["hits"] == 4
    assert len(list(home.glob("*/jobs/*"))) == 1, "the files of the finished job are gone"


def test_a_job_that_is_started_again_evicts_nothing_of_its_own(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 8 * BLOCK)
    home = tmp_path / "cache"
    for job in ("first", "second", "third"):
        read_all(cache_of_job(home, room_for(4), job), path)
        assert sorted(file.name for file in block_files(home)) == [f"{number}-{BLOCK}" for number in range(4)]
        if job == "second":
            finish(home, job)


def test_a_job_that_reads_one_of_its_datasets_keeps_all(tmp_path: Path) -> None:
    """It validates for so long that it has not read what it trains on for a while."""
    train, val, other = (shard(tmp_path / name, "a.tar", 4 * BLOCK) for name in ("train", "val", "other"))
    home = tmp_path / "cache"
    job = cache_of_job(home, room_for(4), "first")
    read_all(job, train)
    finish(home, "first")
    counts = read_all(job, val)
    assert counts["evicted_bytes"] == 0
    counts = read_all(cache_of_job(home, room_for(4), "second"), other)
    assert counts["evicted_bytes"] == 2 * BLOCK, "its share"


def test_two_jobs_share_equally(tmp_path: Path) -> None:
    first, second = (shard(tmp_path / name, "a.tar", 9 * BLOCK) for name in ("first", "second"))
    home = tmp_path / "cache"
    caches = {name: cache_of_job(home, room_for(6), name) for name in ("first", "second")}
    assert read_all(caches["first"], first)["misses"] == 9
    assert read_all(caches["second"], second)["evicted_bytes"] == 3 * BLOCK
    kept = {(file.parent.name, file.name) for file in block_files(home)}
    for _ in range(2):
        assert read_all(caches["first"], first)["hits"] == 3
        assert read_all(caches["second"], second)["hits"] == 3
        assert {(file.parent.name, file.name) for file in block_files(home)} == kept


def test_a_job_that_needs_less_than_its_share_leaves_the_rest(tmp_path: Path) -> None:
    first, second = shard(tmp_path / "first", "a.tar", 9 * BLOCK), shard(tmp_path / "second", "a.tar", BLOCK)
    home = tmp_path / "cache"
    caches = {name: cache_of_job(home, room_for(6), name) for name in ("first", "second")}
    read_all(caches["first"], first)
    assert read_all(caches["second"], second)["evicted_bytes"] == BLOCK
    assert read_all(caches["first"], first)["hits"] == 5
    assert read_all(caches["second"], second)["hits"] == 1


def test_jobs_that_read_the_same_dataset_evict_nothing_of_it(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 8 * BLOCK)
    home = tmp_path / "cache"
    for _ in range(2):
        for job in ("first", "second", "third"):
            assert read_all(cache_of_job(home, room_for(4), job), path)["evicted_bytes"] == 0
    assert sorted(file.name for file in block_files(home)) == [f"{number}-{BLOCK}" for number in range(4)]


def test_blocks_of_a_changed_object_go_first(tmp_path: Path) -> None:
    """A process that did not know yet of the change has stored one more of the old ones."""
    changed, other = (shard(tmp_path / "far", name, 3 * BLOCK) for name in ("a.tar", "b.tar"))
    home = tmp_path / "cache"
    cache = cache_of(home, room_for(3))
    read_all(cache, changed)
    (record,) = home.glob("*/objects/*")
    record.write_text(json.dumps({**json.loads(record.read_bytes()), "tag": "new"}))
    assert read_all(cache, other)["misses"] == 3
    assert {file.parent.name[:32] for file in block_files(home)} == {
        cache._node().version(other).folder.shard.hex()  # type: ignore[union-attr]
    }


def test_blocks_without_a_record_stay(tmp_path: Path) -> None:
    first, second = (shard(tmp_path / "far", name, 3 * BLOCK) for name in ("a.tar", "b.tar"))
    home = tmp_path / "cache"
    cache = cache_of(home, room_for(3))
    read_all(cache, first)
    (record,) = home.glob("*/objects/*")
    record.write_text("damaged")
    read_all(cache, second)
    assert read_all(cache, first)["hits"] == 3


def test_a_lower_limit_holds_at_once(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 6 * BLOCK)
    home = tmp_path / "cache"
    read_all(cache_of(home, room_for(6)), path)
    smaller = cache_of(home, room_for(2))
    smaller.open(path, 6 * BLOCK).read_at(0, 1)
    assert sum(file.lstat().st_blocks * 512 for file in home.rglob("*")) <= room_for(2)
    assert read_all(smaller, path)["hits"] == 2


def test_a_full_cache_is_not_looked_through_for_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_store, "_CHEAP_SECONDS", 0.0)
    monkeypatch.setattr(block_store, "_REFUSAL_FACTOR", 1e9)
    first, second = (shard(tmp_path / name, "a.tar", 9 * BLOCK) for name in ("first", "second"))
    home = tmp_path / "cache"
    looks = []
    clean = block_store.BlockStore._clean
    monkeypatch.setattr(block_store.BlockStore, "_clean", lambda self, ledger: looks.append(1) or clean(self, ledger))
    caches = {name: cache_of_job(home, room_for(4), name) for name in ("first", "second")}
    read_all(caches["first"], first)
    assert len(looks) == 1
    (ledger,) = home.glob("*/ledger")
    ledger.write_bytes(b"")  # forgets that there was nothing to evict
    caches["second"].open(second, 9 * BLOCK).read_at(0, 1)
    read_all(caches["first"], first)
    assert len(looks) == 3
    assert read_all(caches["second"], second)["evicted_bytes"] == BLOCK, "the refusal is that of the first job alone"


def test_jobs_without_room_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes without a launcher that read one dataset do not look through the full cache one after the other."""
    monkeypatch.setattr(block_store, "_CHEAP_SECONDS", 0.0)
    monkeypatch.setattr(block_store, "_REFUSAL_FACTOR", 1e9)
    path = shard(tmp_path / "far", "a.tar", 9 * BLOCK)
    home = tmp_path / "cache"
    caches = [cache_of_job(home, room_for(4), name) for name in ("first", "second")]
    for cache in caches:
        cache.open(path, 9 * BLOCK).read_at(0, 1)
    looks = []
    clean = block_store.BlockStore._clean
    monkeypatch.setattr(block_store.BlockStore, "_clean", lambda self, ledger: looks.append(1) or clean(self, ledger))
    for _ in range(2):
        for cache in caches:
            read_all(cache, path)
    assert len(looks) == 1


def test_ranks_of_a_job_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    pid, own = os.getpid(), job_key()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert job_key() != own
    monkeypatch.setenv("MASTER_ADDR", "node")
    monkeypatch.setenv("MASTER_PORT", "29500")
    ranks = {job_key()}
    monkeypatch.setattr(os, "getpid", lambda: pid + 2)
    ranks.add(job_key())
    assert len(ranks) == 1
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert job_key() not in ranks


class Model:
    """What a cache has to keep, in a few lines: blocks are (dataset, shard, number), the oldest first."""

    def __init__(self, max_bytes: int, room: int) -> None:
        self.max_bytes = max_bytes
        self.room = room
        self.kept: list[tuple[str, str, int]] = []
        self.jobs: dict[str, set[str]] = {}

    def held(self, job: str) -> int:
        """Returns the bytes of the blocks of the datasets of a job."""
        return sum(file_bytes(BLOCK) for dataset, *_ in self.kept if dataset in self.jobs[job])

    def victim(self, job: str) -> tuple[str, str, int] | None:
        """Returns the block that goes for a new one of a job; None if all stay."""
        share = self.max_bytes // len(self.jobs)
        readers = {dataset: [one for one in self.jobs if dataset in self.jobs[one]] for dataset, *_ in self.kept}
        for block in self.kept:
            if not readers[block[0]]:
                return block
        if self.held(job) + file_bytes(BLOCK) <= share:
            for block in self.kept:
                if min(map(self.held, readers[block[0]])) > share:
                    return block
        return None

    def read(self, job: str, block: tuple[str, str, int]) -> None:
        """A job reads a block."""
        self.jobs.setdefault(job, set()).add(block[0])
        if block in self.kept:
            return
        if len(self.kept) == self.room:
            victim = self.victim(job)
            if victim is None:
                return
            self.kept.remove(victim)
        self.kept.append(block)


@pytest.mark.parametrize("seed", range(8))
def test_a_cache_keeps_what_a_model_keeps(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    home, room = tmp_path / "cache", 4 + seed % 3
    names = [(dataset, name) for dataset in "abc" for name in ("0.tar", "1.tar")]
    paths = {name: shard(tmp_path / name[0], name[1], 4 * BLOCK) for name in names}
    model = Model(room_for(room), room)
    caches: dict[str, ShardCache] = {}
    started = 0
    folders = {}
    written = 0
    for _ in range(250):
        if not caches or (len(caches) < 3 and random.random() < 0.05):
            started += 1
            caches[f"job{started}"] = cache_of_job(home, room_for(room), f"job{started}")
        job = random.choice(list(caches))
        if random.random() < 0.04:
            finish(home, job)
            del caches[job]
            model.jobs.pop(job, None)
            continue
        # Each job prefers a dataset, and reads the others sometimes.
        dataset = random.choice(["abc"[int(job[3:]) % 3]] * 30 + list("abc"))
        name, number = (dataset, random.choice(("0.tar", "1.tar"))), random.randrange(4)
        content = paths[name].local.read_bytes()
        offset, size = number * BLOCK + random.randrange(BLOCK - 100), random.randrange(1, 100)
        assert caches[job].open(paths[name], len(content)).read_at(offset, size) == content[offset : offset + size]
        model.read(job, (*name, number))
        version = caches[job]._node().version(paths[name])
        assert version is not None
        folders[version.folder.name] = name
        found = set()
        for file in block_files(home):
            found.add((*folders[file.parent.name], int(file.name.partition("-")[0])))
            if file.stat().st_mtime_ns > 1e18:  # blocks may be written within a tick of the clock: they are numbered
                written += 1
                os.utime(file, ns=(0, written))
        assert found == set(model.kept)
        assert sum(file.lstat().st_blocks * 512 for file in home.rglob("*")) <= room_for(room)
    assert started > 2
    assert not [name for name in files_in(home) if "/claims/" in name]
