"""The cache of shards: what it reads and keeps, and what it survives."""

from __future__ import annotations

import errno
import gc
import json
import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from energon_dali import ShardCache
from energon_dali.cache.shard_cache import block_store, check_shard_cache
from energon_dali.cache.shard_cache.block_file import file_bytes, list_blocks
from energon_dali.cache.shard_cache.block_store import Claim
from energon_dali.cache.shard_cache.cached_reader import CachedReader
from energon_dali.cache.shard_cache.node_cache import NodeCache
from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.local import LocalReader
from tests.cache.shard_cache.shards import BLOCK, block_files, cache_of, counted, files_in, shard
from tests.forking import fork
from tests.full_disk import largest_file
from tests.shards.web_server import serving


def test_second_read_is_local(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 5 * BLOCK + 777)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    with counted() as counts:
        reader = cache.open(path, len(content))
        assert reader.read_at(0, len(content)) == content
        assert counts == {"misses": 6, "bytes_remote": len(content)}
    with counted() as counts:
        assert reader.read_at(BLOCK - 10, 2 * BLOCK) == content[BLOCK - 10 : 3 * BLOCK - 10]
        assert reader.read_at(5 * BLOCK, 10_000) == content[5 * BLOCK :]
        assert reader.read_at(len(content), 5) == b""
        assert counts == {"hits": 4, "bytes_local": 2 * BLOCK + 777}
    assert len(block_files(tmp_path / "cache")) == 6


def test_files_are_private(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", BLOCK)
    cache_of(tmp_path / "cache").open(path).read_at(0, 10)
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "cache").rglob("*")}
    assert modes == {0o700, 0o600}


def damage_by_cutting(file: Path, random: Random) -> None:
    os.truncate(file, random.randrange(file.stat().st_size))


def damage_by_flipping_a_bit(file: Path, random: Random) -> None:
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def damage_by_overwriting(file: Path, random: Random) -> None:
    file.write_bytes(random.randbytes(file.stat().st_size))


def damage_by_exchanging(file: Path, random: Random) -> None:
    other = next(one for one in file.parent.iterdir() if one != file)
    file.write_bytes(other.read_bytes())


def damage_by_a_link(file: Path, random: Random) -> None:
    elsewhere = file.parents[3] / "elsewhere"
    elsewhere.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(elsewhere)


DAMAGES = (
    damage_by_cutting,
    damage_by_flipping_a_bit,
    damage_by_overwriting,
    damage_by_exchanging,
    damage_by_a_link,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[10:])
def test_damaged_blocks_are_never_returned(tmp_path: Path, damage: Any) -> None:
    path = shard(tmp_path / "far", "a.tar", 4 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    for seed in range(6):
        reader = cache.open(path, len(content))
        assert reader.read_at(0, len(content)) == content
        random = Random(seed)
        damage(random.choice(block_files(tmp_path / "cache")), random)
        assert reader.read_at(0, len(content)) == content
        with counted() as counts:
            assert reader.read_at(0, len(content)) == content
            assert counts["hits"] == 4


def test_changed_object_is_read_again_by_the_next_job(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    old = path.local.read_bytes()
    assert cache_of(tmp_path / "cache").open(path, len(old)).read_at(0, len(old)) == old
    new = bytes(reversed(old))
    path.local.write_bytes(new)
    assert cache_of(tmp_path / "cache").open(path, len(new)).read_at(0, len(new)) == new
    assert len(block_files(tmp_path / "cache")) == 2, "the blocks of the old version are gone"
    path.local.write_bytes(new + b"more")
    assert cache_of(tmp_path / "cache").open(path).read_at(0, 3 * BLOCK) == new + b"more"
    path.local.unlink()
    with pytest.raises(FileNotFoundError):
        cache_of(tmp_path / "cache").open(path, len(new)).read_at(0, 1)


def test_blocks_of_a_new_object_are_not_served_for_an_old_index(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    new = path.local.read_bytes()
    with serving(tmp_path / "far") as web:
        url = StoragePath.of(f"{web.url}/a.tar")
        cache = cache_of(tmp_path / "cache")
        assert cache.open(url).read_at(0, len(new)) == new
        for size in (len(new) - BLOCK // 2, len(new) + BLOCK // 2):
            reader = cache.open(url, size)
            with pytest.raises(StorageError, match=f"changed since it was indexed: it has {len(new)} .* had {size}"):
                reader.read_at(0, 10)


def test_a_shard_that_ends_early_is_not_kept(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    assert cache._node().version(path) is not None
    reader = cache.open(path, len(content))
    os.truncate(path.local, BLOCK + 10)
    assert reader.read_at(BLOCK, 100) == content[BLOCK : BLOCK + 10]
    assert block_files(tmp_path / "cache") == []
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


def test_ledger_follows_what_is_removed(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()

    def read() -> NodeCache:
        cache = cache_of(tmp_path / "cache")
        assert cache.open(path, len(content)).read_at(0, len(content)) == path.local.read_bytes()
        return cache._node()

    node = read()
    before, version = node.total_bytes(), node.version(path)
    assert version is not None
    damage_by_overwriting(block_files(tmp_path / "cache")[0], Random(0))
    assert {node.read(version, number, 0, 2 * BLOCK) for number in (0, 1)} & {None}
    assert node.total_bytes() == before - file_bytes(BLOCK)
    assert read().total_bytes() == before
    path.local.write_bytes(bytes(reversed(content)))
    assert read().total_bytes() == before
    assert len(block_files(tmp_path / "cache")) == 2


def test_an_error_frees_the_claims_of_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 3 * BLOCK)
    reader = cache_of(tmp_path / "cache").open(path, 3 * BLOCK)
    reader.read_at(BLOCK, 10)  # the blocks around it are two requests

    def fails(*_: Any) -> bytes:
        raise FileNotFoundError(path.url)

    monkeypatch.setattr(LocalReader, "read_at", fails)
    with pytest.raises(FileNotFoundError):
        reader.read_at(0, 3 * BLOCK)
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


@pytest.mark.parametrize("place", ["read", "admit", "pwritev"])
def test_an_interrupted_read_frees_the_claims_of_all_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = shard(tmp_path / "far", "a.tar", 3 * BLOCK)
    cache = cache_of(tmp_path / "cache")
    node, reader = cache._node(), cache.open(path, 3 * BLOCK)
    blocks = node._open()
    assert blocks is not None
    owner = os if place == "pwritev" else node
    real = getattr(owner, place)

    def interrupt(*arguments: Any) -> Any:
        if len(blocks._fetching) > 1 or place == "pwritev":
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.read_at(0, 3 * BLOCK)
    assert not blocks._fetching
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


def test_a_claim_whose_file_cannot_be_looked_at_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", BLOCK)
    node = cache_of(tmp_path / "cache")._node()
    version, blocks = node.version(path), node._open()
    assert version is not None
    assert blocks is not None

    def fails(name: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(blocks.folder, "stat", fails)
        assert node.claim(version, 0) is None
    node._off_until = 0.0
    node.release(claimed(node, path, 0))


@pytest.mark.parametrize("has_failed", [False, True])
def test_claims_that_end_without_a_block_give_their_bytes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_failed: bool
) -> None:
    def fails(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = shard(tmp_path / "far", "a.tar", 3 * BLOCK)
    node = cache_of(tmp_path / "cache", "1GB")._node()
    claim = claimed(node, path, 0)
    gc.collect()  # what earlier tests left open
    before, descriptors = node.total_bytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert node.admit(claim)
        assert node.total_bytes() >= before + file_bytes(BLOCK)
        if has_failed:
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwritev", fails)
                node.commit(claim, memoryview(bytes(BLOCK)))
            node._off_until = 0.0
        else:
            node.release(claim)
        assert node.total_bytes() == before
        claim = claimed(node, path, 0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    node.release(claim)
    assert node.total_bytes() == before


def test_a_comparison_in_the_future_does_not_count(tmp_path: Path) -> None:
    """The clock of the node, or of another one that shares the folder, was wrong when the object was compared."""
    path = shard(tmp_path / "far", "a.tar", BLOCK)
    old = path.local.read_bytes()
    assert cache_of(tmp_path / "cache").open(path, BLOCK).read_at(0, BLOCK) == old
    (record,) = (tmp_path / "cache").glob("*/objects/*")
    written = json.loads(record.read_bytes())
    record.write_text(json.dumps({**written, "compared": written["compared"] + 1e6}))
    path.local.write_bytes(bytes(reversed(old)))
    assert cache_of(tmp_path / "cache").open(path, BLOCK).read_at(0, BLOCK) == bytes(reversed(old))


def test_one_of_many_threads_fetches_a_block(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 8 * BLOCK)
    content = path.local.read_bytes()
    reader = cache_of(tmp_path / "cache").open(path, len(content))
    together = threading.Barrier(16)

    def read(number: int) -> bytes:
        with counted() as counts:
            together.wait()
            found = reader.read_at(0, len(content))
            fetched.append(counts["bytes_remote"])
            return found

    fetched: list[int] = []
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, range(16))) == {content}
    assert sum(fetched) == len(content)


def _read_all(folder: Path, results: Any) -> None:
    path = StoragePath.of(folder / "far" / "a.tar")
    with counted() as counts:
        reader = cache_of(folder / "cache").open(path)
        found = reader.read_at(0, reader.size)
    results.put((found == path.local.read_bytes(), counts["bytes_remote"]))


def claimed(node: NodeCache, path: StoragePath, number: int) -> Claim:
    """Returns the claim of a block, which nobody may hold yet."""
    version = node.version(path)
    assert version is not None
    claim = node.claim(version, number)
    assert claim is not None
    return claim


def test_block_stored_at_the_last_moment_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    reader = cache.open(path, len(content))
    assert isinstance(reader, CachedReader)
    node, other = cache._node(), cache.open(path, len(content))
    claim = node.claim

    def claim_after_the_other(*block: Any) -> Claim | None:
        monkeypatch.setattr(node, "claim", claim)
        assert other.read_at(0, BLOCK) == content[:BLOCK]
        return claim(*block)

    monkeypatch.setattr(node, "claim", claim_after_the_other)
    with counted() as counts:
        assert reader.read_at(0, BLOCK) == content[:BLOCK]
    assert (counts["hits"], counts["misses"], counts["bytes_remote"]) == (1, 1, BLOCK)
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


def test_block_that_another_thread_gave_up_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    node = cache._node()
    theirs = claimed(node, path, 0)
    wait = node.wait

    def give_up_and_wait(*block: Any) -> bool:
        node.release(theirs)
        return wait(*block)

    monkeypatch.setattr(node, "wait", give_up_and_wait)
    with counted() as counts:
        assert cache.open(path, len(content)).read_at(100, 1000) == content[100:1100]
    assert counts == {"misses": 1, "bytes_remote": BLOCK}
    assert len(block_files(tmp_path / "cache")) == 1


def test_end_of_a_claim_wakes_its_own_waiters_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    node = cache_of(tmp_path / "cache")._node()
    version, blocks = node.version(path), node._open()
    assert version is not None
    assert blocks is not None
    first = node.claim(version, 0)
    assert first is not None
    assert node.admit(first)
    rename = blocks.folder.rename
    following = []

    def rename_and_claim(name: str, new: str) -> None:
        rename(name, new)
        following.append(node.claim(version, 0))  # of another thread, before the first claim has ended

    monkeypatch.setattr(blocks.folder, "rename", rename_and_claim)
    node.commit(first, memoryview(bytes(BLOCK)))
    assert first.ended.is_set()
    [second] = following
    assert second is not None
    waiter = threading.Thread(target=node.wait, args=(version, 0, 60.0))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    node.release(second)
    waiter.join(60)
    assert not waiter.is_alive()


def test_one_of_several_processes_fetches_a_block(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 40 * BLOCK)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_read_all, args=(tmp_path, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(right for right, _ in found)
    assert sum(fetched for _, fetched in found) == path.size()


def test_limit_holds_for_everything_on_disk(tmp_path: Path) -> None:
    limit = 10 * file_bytes(BLOCK)
    cache = cache_of(tmp_path / "cache", limit)
    with counted() as counts:
        for name in "abcdef":
            path = shard(tmp_path / "far", f"{name}.tar", 5 * BLOCK)
            content = path.local.read_bytes()
            reader = cache.open(path, len(content))
            for offset in range(0, len(content), BLOCK // 2):
                assert reader.read_at(offset, BLOCK // 2) == content[offset : offset + BLOCK // 2]
            on_disk = sum(file.lstat().st_blocks * 512 for file in (tmp_path / "cache").rglob("*"))
            assert on_disk <= limit
    assert len(block_files(tmp_path / "cache")) == 9
    assert counts["evicted_bytes"] == 0, "the job still runs"


def test_ledger_counts_small_files_and_folders(tmp_path: Path) -> None:
    """Many shards smaller than a block: what is beside the blocks is more than the blocks."""
    limit = 300_000
    cache = cache_of(tmp_path / "cache", limit)
    with counted() as counts:
        for number in range(60):
            path = shard(tmp_path / "far", f"{number}.tar", 512)
            assert len(cache.open(path, 512).read_at(0, 512)) == 512
            on_disk = sum(file.lstat().st_blocks * 512 for file in (tmp_path / "cache").rglob("*"))
            assert on_disk <= cache._node().total_bytes() <= limit
    assert counts["evicted_bytes"] > 0


def test_a_block_is_stored_though_its_new_folder_is_removed_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread looks for blocks to evict between the creation of a folder and the first block in it."""
    path = shard(tmp_path / "far", "a.tar", BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    blocks = cache._node()._open()
    assert blocks is not None
    make, removals = blocks.folder.make, iter(range(3))

    def make_and_list(name: str) -> None:
        make(name)
        if next(removals, None) is not None:
            list_blocks(blocks.folder)
            assert blocks.folder.stat(name) is None

    monkeypatch.setattr(blocks.folder, "make", make_and_list)
    assert cache.open(path, BLOCK).read_at(0, BLOCK) == content
    assert len(block_files(tmp_path / "cache")) == 1
    assert not caplog.records
    assert cache._node().is_usable


def test_claims_of_dead_processes_are_free(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 3 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache", 4 * file_bytes(BLOCK))
    pid = os.fork()
    if pid == 0:
        node = cache._node()
        version = node.version(path)
        assert version is not None
        for number in range(3):
            claim = node.claim(version, number)
            assert claim is not None
            assert node.admit(claim)
        os._exit(0)  # as if killed: nothing is cleaned up
    os.waitpid(pid, 0)
    assert cache._node().total_bytes() > 3 * BLOCK
    with counted() as counts:
        assert cache.open(path, len(content)).read_at(0, len(content)) == content
    assert counts == {"misses": 3, "bytes_remote": len(content)}
    assert len(block_files(tmp_path / "cache")) == 3
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


def test_a_reader_goes_on_in_a_forked_child_whatever_the_parents_threads_do(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 4 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    reader = cache.open(path, len(content))
    assert isinstance(reader, CachedReader)
    assert reader.read_at(0, 2 * BLOCK) == content[: 2 * BLOCK]
    node = cache._node()
    with reader._lock, node._lock, node._blocks._lock._threads:  # type: ignore[union-attr]
        pid = fork()
        if pid == 0:
            signal.alarm(60)
            files = [os.open("/dev/null", os.O_RDWR) for _ in range(20)]  # with the numbers of the parent's files
            with counted() as counts:
                right = reader.read_at(0, len(content)) == content
            right = right and (counts["hits"], counts["misses"]) == (2, 2)
            os._exit(0 if right and len(files) == 20 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    with counted() as counts:
        assert reader.read_at(0, len(content)) == content
    assert counts == {"hits": 4, "bytes_local": 4 * BLOCK}


def test_full_disk_costs_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = shard(tmp_path / "far", "a.tar", 6 * BLOCK)
    content = path.local.read_bytes()
    reader = cache_of(tmp_path / "cache").open(path, len(content))
    assert reader.read_at(0, 2 * BLOCK) == content[: 2 * BLOCK]

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with caplog.at_level(logging.WARNING), counted() as counts:
        for _ in range(3):
            assert reader.read_at(0, len(content)) == content
    assert [record.message for record in caplog.records if "No space left" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert counts["hits"] == 6, "what is on disk is still used"
    assert len(block_files(tmp_path / "cache")) == 2
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]


def test_limited_files_cost_no_sample(tmp_path: Path) -> None:
    path = shard(tmp_path / "far", "a.tar", 4 * BLOCK)
    content = path.local.read_bytes()
    reader = cache_of(tmp_path / "cache").open(path, len(content))
    with largest_file(BLOCK // 2):
        for _ in range(2):
            assert reader.read_at(0, len(content)) == content
    assert block_files(tmp_path / "cache") == []


def test_missing_disk_costs_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    (tmp_path / "file").write_text("not a folder")
    cache = cache_of(tmp_path / "file" / "cache")
    check_shard_cache(cache)
    reader = cache.open(path, 2 * BLOCK)
    for _ in range(3):
        assert reader.read_at(0, 2 * BLOCK) == path.local.read_bytes()
    assert len(caplog.records) == 1
    assert "Shards are read without it" in caplog.text


def test_failing_disk_costs_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    reader = cache_of(tmp_path / "cache").open(path, len(content))
    assert reader.read_at(0, len(content)) == content

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(block_store, "read_block", fails)
    assert reader.read_at(0, len(content)) == content


def test_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of(tmp_path / "cache")
    cache.check()
    (home,) = (tmp_path / "cache").iterdir()
    uid = os.geteuid()
    monkeypatch.setattr(os, "fstat", lambda descriptor, real=os.fstat: _Owned(real(descriptor), uid + 1))
    with pytest.raises(ConfigError, match="belongs to the user with number"):
        check_shard_cache(cache)
    monkeypatch.undo()
    home.rename(tmp_path / "moved")
    home.symlink_to(tmp_path / "moved")
    with pytest.raises(ConfigError, match="is not a folder, but a link"):
        check_shard_cache(cache)


class _Owned:
    """The status of a file, with another owner."""

    def __init__(self, status: os.stat_result, uid: int) -> None:
        self._status = status
        self.st_uid = uid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._status, name)


@pytest.mark.parametrize(
    ("value", "path", "size"),
    [
        ("/scratch:500GB", "/scratch", 500 * 10**9),
        ("/a:b:1TiB", "/a:b", 1 << 40),
        ("/scratch:64 mib", "/scratch", 64 << 20),
        ("/scratch:1.5G", "/scratch", 1_500_000_000),
        ("/scratch:123456789", "/scratch", 123456789),
    ],
)
def test_environment_variable(monkeypatch: pytest.MonkeyPatch, value: str, path: str, size: int) -> None:
    monkeypatch.setenv("ENERGON_DALI_SHARD_CACHE", value)
    cache = ShardCache.from_environment()
    assert cache is not None
    assert (str(cache.path), cache.max_bytes) == (path, size)


@pytest.mark.parametrize("value", ["/scratch", ":5GB", "/scratch:", "/scratch:5XB", "/scratch:-5GB", "s3://b/c:5GB"])
def test_wrong_environment_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ENERGON_DALI_SHARD_CACHE", value)
    with pytest.raises(ConfigError, match=r"ENERGON_DALI_SHARD_CACHE=.* is wrong: .*Set it to PATH:MAX_BYTES"):
        check_shard_cache("auto")


def test_explicit_value_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENERGON_DALI_SHARD_CACHE", f"{tmp_path}:5GB")
    own = ShardCache(tmp_path / "own", max_bytes="1GB")
    assert check_shard_cache(own) is own
    assert check_shard_cache(None) is None
    found = check_shard_cache("auto")
    assert found is not None
    assert found.path == tmp_path
    monkeypatch.delenv("ENERGON_DALI_SHARD_CACHE")
    assert check_shard_cache("auto") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": "lots"}, "max_bytes='lots' is not a size"),
        ({"max_bytes": 0}, "max_bytes=0 is not a size"),
        ({"max_bytes": "1GB", "block_bytes": 1000}, "block_bytes=1000 is out of range: give 64 KiB to 64 MiB"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ShardCache(tmp_path, **options)
    with pytest.raises(ConfigError, match="shard_cache='/scratch' is not a ShardCache"):
        check_shard_cache("/scratch")


def test_readers_go_on_while_another_process_never_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.cache.shard_cache.cached_reader.WAIT_SECONDS", 0.05)
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    cache = cache_of(tmp_path / "cache")
    node = cache._node()
    claim = claimed(node, path, 1)
    reader = cache.open(path, len(content))
    assert reader.read_at(0, len(content)) == content
    assert len(block_files(tmp_path / "cache")) == 1
    node.release(claim)
    assert reader.read_at(0, len(content)) == content
    assert len(block_files(tmp_path / "cache")) == 2


def test_failing_storage_raises_and_frees_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "far", "a.tar", 2 * BLOCK)
    content = path.local.read_bytes()
    reader = cache_of(tmp_path / "cache").open(path, len(content))

    def fails(*_: Any) -> bytes:
        raise FileNotFoundError(path.url)

    with monkeypatch.context() as patch:
        patch.setattr(LocalReader, "read_at", fails)
        with pytest.raises(FileNotFoundError):
            reader.read_at(0, 10)
    assert not [name for name in files_in(tmp_path / "cache") if "/claims/" in name]
    assert reader.read_at(0, len(content)) == content
