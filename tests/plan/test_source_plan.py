from __future__ import annotations

import copy
import pickle
import resource
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import long_property

counts_of_shards = st.lists(st.one_of(st.just(0), st.just(1), st.integers(2, 60)), max_size=7)
options = st.fixed_dictionaries(
    {
        "num_streams": st.one_of(st.integers(1, 9), st.just(70)),
        "seed": st.integers(0, 5),
        "source": st.integers(0, 2),
        "max_samples_per_sequence": st.one_of(st.none(), st.integers(1, 30)),
        "parallel_shard_iters": st.integers(1, 20),
        "shuffle_buffer_size": st.one_of(st.integers(0, 3), st.integers(4, 200)),
        "window_in_slice": st.booleans(),
    }
)


def triples(plan: SourcePlan, stream: int = 0, epoch: int = 0) -> list[tuple[int, int, int]]:
    """Returns (shard, index, pass) of the rows of a stream in an epoch."""
    rows = plan.rows(plan.epoch_start(epoch, stream), plan.epoch_start(epoch + 1, stream), stream)
    assert not rows.sources.any()
    return [row[1:] for row in rows.as_tuples()]


def everything(plan: SourcePlan, epoch: int) -> list[tuple[int, int, int]]:
    return [triple for stream in range(plan.num_streams) for triple in triples(plan, stream, epoch)]


def all_samples(counts: list[int], passes: range) -> Counter[tuple[int, int, int]]:
    return Counter((shard, i, p) for shard, count in enumerate(counts) for i in range(count) for p in passes)


@long_property()
@given(counts_of_shards, options, st.sampled_from([None, 1, 2, 3]), st.integers(0, 5))
def test_every_sample_comes_once_per_pass(
    counts: list[int], chosen: dict[str, Any], over_epochs: int | None, epoch: int
) -> None:
    plan = SourcePlan(base=Slices.whole_shards(counts), shuffle_over_epochs=over_epochs, **chosen)
    passes = over_epochs or 1
    assert Counter(everything(plan, epoch)) == all_samples(counts, range(epoch * passes, (epoch + 1) * passes))
    sizes = [plan.epoch_length(epoch, stream) for stream in range(plan.num_streams)]
    assert sizes == [len(triples(plan, stream, epoch)) for stream in range(plan.num_streams)]
    assert max(sizes) - min(sizes) <= 1


@given(counts_of_shards, options, st.integers(0, 3))
def test_draws_with_replacement_have_as_many_samples_as_the_split(
    counts: list[int], chosen: dict[str, Any], epoch: int
) -> None:
    plan = SourcePlan(base=Slices.whole_shards(counts), shuffle_over_epochs=-1, **chosen)
    samples = everything(plan, epoch)
    assert len(set(samples)) == len(samples) == sum(counts)
    assert {sample[:2] for sample in samples} <= {sample[:2] for sample in all_samples(counts, range(1))}
    if samples and not plan.is_dealt:  # a drawn slice is read completely, in one pass; the last one is cut
        drawn = Counter(sample[2] for sample in samples)
        lengths = [drawn[number] for number in sorted(drawn)]
        assert set(lengths[:-1]) <= set(plan.slices.lengths.tolist())
        assert lengths[-1] <= max(plan.slices.lengths)


@long_property()
@given(counts_of_shards, options, st.booleans(), st.data())
def test_any_range_is_part_of_the_whole(
    counts: list[int], chosen: dict[str, Any], repeat: bool, data: st.DataObject
) -> None:
    plan = SourcePlan(base=Slices.whole_shards(counts), repeat=repeat, **chosen)
    stream = data.draw(st.integers(0, plan.num_streams - 1))
    length = 150 if sum(counts) else 0
    whole = plan.rows(0, length, stream)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    part = plan.rows(start, stop, stream)
    assert [column.dtype for column in (part.sources, part.shards, part.indices, part.passes)] == [
        np.int32,
        np.int32,
        np.int64,
        np.int64,
    ]
    assert part.as_tuples() == whole.as_tuples()[start:stop]


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(0, 299), st.integers(10**9, 1 << 47))
def test_a_jump_far_ahead_agrees_with_its_neighbours(total: int, streams: int, stream: int, row: int) -> None:
    plan = SourcePlan(Slices.whole_shards([total]), streams, 1, parallel_shard_iters=3, shuffle_buffer_size=7)
    stream %= streams
    assert plan.rows(row, row + 9, stream).as_tuples()[4:] == plan.rows(row + 4, row + 9, stream).as_tuples()
    epoch = plan.epoch_at(row, stream)
    assert plan.epoch_start(epoch, stream) <= row < plan.epoch_start(epoch + 1, stream)


@given(st.integers(0, 40), st.integers(1, 12))
def test_lanes_are_read_in_turn(count: int, lanes: int) -> None:
    plan = SourcePlan(
        base=Slices.whole_shards([count]),
        num_streams=1,
        seed=0,
        shuffle_over_epochs=None,
        parallel_shard_iters=lanes,
        max_samples_per_sequence=1,
    )
    lanes = max(1, min(lanes, count))
    short, longer = divmod(count, lanes)
    stretches, begin = [], 0
    for lane in range(lanes):
        end = begin + short + (lane < longer)
        stretches.append(list(range(begin, end)))
        begin = end
    expected = [stretch[turn] for turn in range(short + 1) for stretch in stretches if turn < len(stretch)]
    assert [index for _, index, _ in triples(plan, 0, 0)] == expected


def test_the_order_never_changes() -> None:
    plan = SourcePlan(
        base=Slices.whole_shards([5, 3, 9]),
        num_streams=2,
        seed=11,
        source=1,
        max_samples_per_sequence=3,
        parallel_shard_iters=2,
        shuffle_buffer_size=4,
    )
    assert [sample[:2] for sample in triples(plan, 0, 2)] == [
        (0, 4),
        (0, 3),
        (1, 1),
        (1, 2),
        (0, 2),
        (1, 0),
        (0, 0),
        (0, 1),
    ]
    assert [sample[:2] for sample in triples(plan, 1, 2)] == [
        (2, 4),
        (2, 2),
        (2, 5),
        (2, 6),
        (2, 3),
        (2, 0),
        (2, 7),
        (2, 8),
        (2, 1),
    ]


def test_validation_is_contiguous_in_file_order_and_the_same_in_each_epoch() -> None:
    plan = SourcePlan(
        base=Slices.whole_shards([3, 0, 4]),
        num_streams=2,
        seed=5,
        shuffle=False,
        shuffle_buffer_size=100,
        parallel_shard_iters=8,
        max_samples_per_sequence=2,
    )
    for epoch in (0, 1):
        assert triples(plan, 0, epoch) == [(0, i, 0) for i in range(3)]
        assert triples(plan, 1, epoch) == [(2, i, 0) for i in range(4)]


def test_a_remainder_goes_round_the_streams() -> None:
    plan = SourcePlan(base=Slices.whole_shards([10]), num_streams=4, seed=0)
    sizes = [[plan.epoch_length(epoch, stream) for epoch in range(4)] for stream in range(4)]
    assert all(sum(of_stream) == 10 for of_stream in sizes)


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 9), st.integers(0, 4))
def test_an_offset_turns_the_remainder_of_training_to_other_streams(
    count: int, streams: int, offset: int, epoch: int
) -> None:
    base = Slices.whole_shards([count])
    plain, turned = (
        SourcePlan(base=base, num_streams=streams, seed=3, range_offset=off) for off in (0, offset % streams)
    )
    for stream in range(streams):
        other = (stream + offset) % streams
        assert turned.range_of(epoch, stream) == plain.range_of(epoch, other)
    assert Counter(everything(turned, epoch)) == all_samples([count], range(epoch, epoch + 1))


def test_draws_with_replacement_differ_from_epoch_to_epoch_and_never_change() -> None:
    base = Slices.whole_shards([1] * 12)
    plan = SourcePlan(base=base, num_streams=1, seed=3, shuffle_over_epochs=-1)
    drawn = [[shard for shard, *_ in everything(plan, epoch)] for epoch in range(3)]
    assert drawn == [
        [8, 4, 0, 11, 2, 11, 10, 9, 6, 10, 8, 0],
        [7, 11, 3, 1, 9, 6, 3, 4, 11, 11, 11, 7],
        [5, 10, 1, 2, 7, 9, 2, 6, 0, 10, 1, 8],
    ]
    lengths = SourcePlan(Slices.whole_shards([1, 5, 2]), 1, 3, shuffle_over_epochs=-1)
    assert triples(lengths) == [
        *[(2, 0, 0), (2, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1), (0, 0, 2)],
    ]


def test_epochs_seeds_and_sources_have_different_orders() -> None:
    def order(seed: int, source: int, epoch: int) -> tuple[Any, ...]:
        base = Slices.whole_shards([9] * 20)
        plan = SourcePlan(base=base, num_streams=1, seed=seed, source=source, shuffle_buffer_size=30)
        return tuple(sample[:2] for sample in triples(plan, 0, epoch))

    orders = {order(seed, source, epoch) for seed in range(3) for source in range(3) for epoch in range(3)}
    assert len(orders) == 27


def test_slices_are_read_one_after_the_other_with_one_lane() -> None:
    base = Slices.whole_shards([7, 5, 9, 1])
    for options in ({}, {"shuffle_buffer_size": 3, "window_in_slice": True}):
        plan = SourcePlan(base=base, num_streams=1, seed=3, max_samples_per_sequence=4, **options)  # type: ignore[arg-type]
        samples = [sample[:2] for sample in triples(plan, 0, 1)]
        slices = plan.slices
        runs = []
        while samples:
            shard, index = samples[0]
            number = next(
                n for n in range(len(slices)) if slices.shard[n] == shard and slices.start[n] <= index < slices.stop[n]
            )
            length = int(slices.lengths[number])
            assert {sample[0] for sample in samples[:length]} == {shard}
            assert sorted(i for _, i in samples[:length]) == list(range(slices.start[number], slices.stop[number]))
            assert options or samples[:length] == sorted(samples[:length])
            runs.append(number)
            samples = samples[length:]
        assert sorted(runs) == list(range(len(slices)))
        assert runs != sorted(runs)


def test_a_plan_is_a_value() -> None:
    def make(seed: int = 0) -> SourcePlan:
        return SourcePlan(Slices.whole_shards([4] * 500), num_streams=1, seed=seed, max_samples_per_sequence=1)

    plan = make()
    size = len(pickle.dumps(make()))
    before = triples(plan)
    sent = pickle.dumps(plan)
    assert len(sent) == size, "what was computed does not travel"
    again = pickle.loads(sent)
    assert again == plan == make() != make(1)
    assert hash(again) == hash(plan)
    assert triples(again) == triples(copy.deepcopy(plan)) == before
    assert "2000 samples in 2000 slices" in str(plan)


def test_threads_share_a_plan() -> None:
    plan = SourcePlan(Slices.whole_shards([40] * 30), 3, 1, parallel_shard_iters=4, shuffle_buffer_size=50, repeat=True)
    starts = [number * 137 % 5000 for number in range(40)]
    expected = [plan.rows(start, start + 300, start % 3).as_tuples() for start in starts]
    shared = pickle.loads(pickle.dumps(plan))
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = pool.map(lambda start: shared.rows(start, start + 300, start % 3).as_tuples(), starts)
            assert list(found) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_streams": 0}, "num_streams=0 is out of range"),
        ({"parallel_shard_iters": 0}, "parallel_shard_iters=0 is out of range"),
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size=-1 is out of range"),
        ({"shuffle_over_epochs": 0}, "shuffle_over_epochs=0 is invalid"),
        ({"shuffle_over_epochs": -2}, "shuffle_over_epochs=-2 is invalid"),
        ({"max_samples_per_sequence": 0}, "max_samples_per_sequence=0 is not a length"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourcePlan(**{"base": Slices.whole_shards([1]), "num_streams": 1, "seed": 0, **wrong})  # type: ignore[arg-type]


def test_places_outside_are_refused() -> None:
    plan = SourcePlan(base=Slices.whole_shards([3]), num_streams=1, seed=0)
    with pytest.raises(IndexError, match="Stream 1 does not exist"):
        plan.rows(0, 1, 1)
    with pytest.raises(IndexError, match="Rows -1 to 4 do not exist"):
        plan.rows(-1, 4)
    with pytest.raises(IndexError, match="Rows 4 to 3 do not exist"):
        plan.rows(4, 3)
    with pytest.raises(IndexError, match="no samples"):
        SourcePlan(base=Slices.whole_shards([]), num_streams=1, seed=0).rows(0, 1)
    empty = SourcePlan(base=Slices.whole_shards([1]), num_streams=2, seed=0, shuffle=False)
    (without,) = (stream for stream in range(2) if not empty.epoch_length(0, stream))
    with pytest.raises(IndexError, match="has no rows"):
        empty.rows(0, 1, without)


def test_ten_million_samples_in_little_memory() -> None:
    plan = SourcePlan(
        base=Slices.whole_shards(np.arange(10_000) % 3 * 700 + 300),
        num_streams=1,
        seed=1,
        shuffle_buffer_size=100_000,
        parallel_shard_iters=16,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    length = plan.epoch_length(0)
    assert length > 9_990_000
    offsets = np.concatenate([[0], np.cumsum(plan.base.stop)])
    seen = np.zeros(length, np.bool_)
    for start in range(0, length, 1 << 19):
        rows = plan.rows(start, min(length, start + (1 << 19)))
        seen[offsets[rows.shards] + rows.indices] = True
    assert seen.all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def ranks(plan: SourcePlan, world_size: int) -> list[int]:
    sizes = [plan.epoch_length(0, stream) for stream in range(plan.num_streams)]
    return [sum(sizes[rank::world_size]) for rank in range(world_size)]


@given(st.integers(0, 200), st.sampled_from([1, 2, 6, 8, 12, 16]), st.integers(0, 40))
def test_remainders_of_validation_are_spread_over_the_ranks_of_every_layout(count: int, streams: int, off: int) -> None:
    plan = SourcePlan(
        base=Slices.whole_shards([count]), num_streams=streams, seed=0, shuffle=False, range_offset=off % streams
    )
    assert [triple[1] for triple in everything(plan, 0)] == list(range(count))
    for world_size in (size for size in range(1, streams + 1) if streams % size == 0):
        of_ranks = ranks(plan, world_size)
        assert sum(of_ranks) == count
        assert max(of_ranks) - min(of_ranks) <= 1


def test_a_large_job_deals_small_sources_sample_by_sample() -> None:
    """Every 100 rows of the 80 streams together, in the order in which they are dealt, are a whole pass."""
    plan = SourcePlan(Slices.whole_shards([40, 60]), 80, 5, repeat=True)
    assert plan.is_dealt
    columns = [plan.rows(0, 50, stream).as_tuples() for stream in range(80)]
    dealt = [row for rows in zip(*columns, strict=True) for row in rows]
    passes = [dealt[start : start + 100] for start in range(0, 4000, 100)]
    for number, rows in enumerate(passes):
        assert {row[3] for row in rows} == {number}
        assert sorted(row[1:3] for row in rows) == [(s, i) for s, n in ((0, 40), (1, 60)) for i in range(n)]
    assert len({tuple(row[1:3] for row in rows) for rows in passes}) == 40
    assert not SourcePlan(Slices.whole_shards([40, 60]), 8, 5, repeat=True).is_dealt
