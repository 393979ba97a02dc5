"""Plans that processes publish for each other, and fetching ahead by plan."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from energon_dali.cache.shard_cache.block_file import pages
from energon_dali.cache.shard_cache.follower import PlanFollower
from energon_dali.cache.shard_cache.future import Future, StreamFuture, eviction_order
from energon_dali.cache.shard_cache.plan_file import FOLDER, PlanFile, pack_plan, read_plans, unpack_plan
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.cache.shard_cache.shard_layout import ShardLayout
from energon_dali.plan import BlendPlan, Slices, SourcePlan
from energon_dali.plan.next_use import UseTable
from tests.cache.shard_cache.shards import BLOCK, block_files, cache_of, counted
from tests.cache.shard_cache.test_eviction_by_plan import block_dataset, room_for


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def future() -> Future:
    near = StreamFuture(UseTable.of(ids(1, 2, 1), np.array([4, 6, 9])), 3, 0.5)
    far = StreamFuture(UseTable.of(ids(2, 7), np.array([100, 30])), 20, 1.0)
    return Future([near, far], ids(50, 60))


def test_the_nearest_use_of_all_streams_counts() -> None:
    seconds = future().seconds_until(ids(7, 1, 2, 8, 9), ids(50, 60, 50, 60, 70))
    assert seconds[:4].tolist() == [10.0, 0.5, 1.5, np.inf]
    assert np.isnan(seconds[4]), "the plan of its shard is not known"


def test_what_is_needed_last_goes_first() -> None:
    seconds = np.array([5.0, np.inf, np.nan, 300.0, np.nan, np.inf])
    idle = np.array([0.0, 7.0, 200.0, 0.0, 1.0, 9.0])
    order, expected = eviction_order(seconds, idle)
    # Never again, the older one first; then 300 s; then what was not used for 200 s, and so on.
    assert order.tolist() == [5, 1, 3, 2, 0, 4]
    assert expected.tolist() == [5.0, np.inf, 200.0, 300.0, 1.0, np.inf]


def test_plans_of_other_processes_are_read_and_those_of_dead_ones_removed(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, "cache")
    folder.make(FOLDER)
    counted: list[int] = []
    mine, other = PlanFile(folder, counted.append), PlanFile(folder, [].append)
    mine.publish(future())
    mine.publish(future())
    assert sum(counted) == pages(len(pack_plan(future())))
    other.publish(future())
    other.update([(5, 0.25), (25, 2.0)])
    (found,) = read_plans(folder, mine.name)
    assert found.seconds_until(ids(1, 7), ids(50, 50)).tolist() == [1.0, 10.0]
    pid = os.fork()
    if pid == 0:
        PlanFile(folder, [].append).publish(future())
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(folder.list(FOLDER)) == 3
    assert len(read_plans(folder, mine.name)) == 1
    assert sorted(folder.list(FOLDER)) == sorted([mine.name, other.name])
    other.close()
    assert read_plans(folder, mine.name) == []
    mine.close()
    assert folder.list(FOLDER) == []
    assert sum(counted) == 0
    folder.close()


def test_damaged_plans_are_not_used() -> None:
    data = pack_plan(future())
    expected = unpack_plan(data).seconds_until(ids(1, 2, 7), ids(50, 50, 50)).tolist()
    random = Random(1)
    for _ in range(300):
        damaged = bytearray(data)
        if random.random() < 0.3:
            del damaged[random.randrange(len(damaged)) :]
        else:
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        try:
            found = unpack_plan(bytes(damaged)).seconds_until(ids(1, 2, 7), ids(50, 50, 50))
        except ValueError:
            continue
        # Only the positions are not under the checksum: they are written in place.
        assert len(found) == len(expected)


def test_blocks_are_fetched_ahead_as_long_as_they_are_worth_it(tmp_path: Path) -> None:
    folder = block_dataset(tmp_path / "far", 2, 6)
    order = SourcePlan(Slices.whole_shards([6, 6]), 1, 0, shuffle_buffer_size=4)
    cache = cache_of(tmp_path / "cache", room_for(6), fill_requests=1)
    rows = order.rows(0, 6)
    shards, samples = rows.shards.tolist(), rows.indices.tolist()
    wanted = sorted(zip(shards, samples, strict=True))
    with counted() as counts:
        follower = cache.follow(order, 0, {0: (folder, None)}, 0)
        assert follower is not None
        end = time.monotonic() + 20
        while len(block_files(tmp_path / "cache")) < 6 and time.monotonic() < end:
            time.sleep(0.01)
        numbers = sorted(int(file.name.partition("-")[0]) for file in block_files(tmp_path / "cache"))
        assert numbers == sorted(sample for _, sample in wanted), "the next six blocks, and no others"
        assert counts["bytes_remote"] == 6 * BLOCK
    files = [cache.open(folder.root / name, None) for name in folder.shard_names]
    with counted() as counts:
        for position, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
            follower.advance(position + 1)
            assert files[shard].read_at(sample * BLOCK + 512, 5) == bytes([shard * 6 + sample]) * 5
        assert counts["misses"] == 0
    follower.close()


@pytest.mark.parametrize("fork", [False, True])
def test_a_process_evicts_by_the_plans_of_others(tmp_path: Path, fork: bool) -> None:
    """What another process needs soon stays, and what it needs last goes, whoever makes room."""
    folder = block_dataset(tmp_path / "far", 1, 8)
    order = SourcePlan(Slices.whole_shards([8]), 1, 0, shuffle=False)
    path = folder.root / folder.shard_names[0]
    cache = cache_of(tmp_path / "cache", room_for(4), fill_requests=0)
    follower = cache.follow(order, 0, {0: (folder, None)}, 0)
    assert follower is not None
    node = cache._node()
    assert node.planner.wait_until_planned(20)
    end = time.monotonic() + 20
    while not list((tmp_path / "cache").glob("*/plans/*")) and time.monotonic() < end:
        time.sleep(0.01)
    reader = cache.open(path, None)
    for number in (0, 1, 2, 3):
        reader.read_at(number * BLOCK, 10)
    kept = sorted(int(file.name.partition("-")[0]) for file in block_files(tmp_path / "cache"))
    assert kept == [0, 1, 2, 3]

    def read_seven() -> None:
        other = cache_of(tmp_path / "cache", room_for(4), fill_requests=0)
        other.open(path, None).read_at(7 * BLOCK, 10)

    if fork:
        pid = os.fork()
        if pid == 0:
            read_seven()
            os._exit(0)
        os.waitpid(pid, 0)
    else:
        read_seven()
    kept = sorted(int(file.name.partition("-")[0]) for file in block_files(tmp_path / "cache"))
    assert kept == [0, 1, 2, 3], "block 7 is needed later than all that are there"
    follower.close()


def test_a_stream_may_be_ahead_of_what_was_planned(tmp_path: Path) -> None:
    folder = block_dataset(tmp_path / "far", 1, 6)
    order = SourcePlan(Slices.whole_shards([6]), 1, 0)
    layout = ShardLayout(folder, None, BLOCK)
    follower = PlanFollower(order, 0, {0: layout}, 2, 1 << 12, lambda _: None)
    assert follower.now == 2
    follower.advance(19)
    follower.extend()
    assert follower.uses.positions.tolist() == list(range(19, 31)), "two passes"
    assert follower.uses.blocks.tolist() == order.rows(19, 31).indices.tolist()
    layout.close()


def test_a_mixture_is_followed_as_a_whole(tmp_path: Path) -> None:
    """Shards of all sources are told apart; a source that is not cached has no uses."""
    folders = [block_dataset(tmp_path / name, 2, 6) for name in ("a", "b", "c")]
    plans = tuple(SourcePlan(Slices.whole_shards([6, 6]), 1, 0, source=n, repeat=True) for n in range(3))
    blend = BlendPlan(plans, (1, 2, 1), 0)
    layouts = {number: ShardLayout(folders[number], None, BLOCK) for number in (0, 2)}
    follower = PlanFollower(blend, 0, layouts, 0, 1 << 12, lambda _: None)
    follower.extend()
    found = [
        (position, follower.path(shard).url, block)
        for position, shard, block in zip(
            follower.uses.positions.tolist(), follower.uses.shards.tolist(), follower.uses.blocks.tolist(), strict=True
        )
    ]
    expected = [
        (position, (folders[source].root / folders[source].shard_names[shard]).url, index)
        for position, (source, shard, index, _) in enumerate(blend.rows(0, 72).as_tuples())
        if source != 1
    ]
    assert found == expected
    for layout in layouts.values():
        layout.close()
