from __future__ import annotations

import pickle
import resource
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan import EpochOrder, OrderSpec, Slices

counts_of_shards = st.lists(st.one_of(st.just(0), st.just(1), st.integers(2, 60)), max_size=7)
options = st.fixed_dictionaries(
    {
        "num_streams": st.integers(1, 9),
        "seed": st.integers(0, 5),
        "source": st.integers(0, 2),
        "max_samples_per_sequence": st.one_of(st.none(), st.integers(1, 30)),
        "parallel_shard_iters": st.integers(1, 20),
        "shuffle_buffer_size": st.one_of(st.integers(0, 3), st.integers(4, 200)),
        "window_in_slice": st.booleans(),
    }
)


def triples(order: EpochOrder) -> list[tuple[int, int, int]]:
    columns = order.samples(0, len(order))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def everything(spec: OrderSpec, epoch: int) -> list[tuple[int, int, int]]:
    return [triple for stream in range(spec.num_streams) for triple in triples(spec.stream(stream).epoch(epoch))]


def all_samples(counts: list[int], passes: range) -> Counter[tuple[int, int, int]]:
    return Counter((shard, i, p) for shard, count in enumerate(counts) for i in range(count) for p in passes)


@given(counts_of_shards, options, st.sampled_from([None, 1, 2, 3]), st.integers(0, 5))
def test_every_sample_comes_once_per_pass(
    counts: list[int], chosen: dict[str, Any], over_epochs: int | None, epoch: int
) -> None:
    spec = OrderSpec(base=Slices.whole_shards(counts), shuffle_over_epochs=over_epochs, **chosen)
    passes = over_epochs or 1
    assert Counter(everything(spec, epoch)) == all_samples(counts, range(epoch * passes, (epoch + 1) * passes))
    sizes = [spec.stream(stream).num_samples(epoch) for stream in range(spec.num_streams)]
    assert sizes == [len(spec.stream(stream).epoch(epoch)) for stream in range(spec.num_streams)]
    assert max(sizes) - min(sizes) <= 1


@given(counts_of_shards, options, st.integers(0, 3))
def test_draws_with_replacement_name_every_occurrence(counts: list[int], chosen: dict[str, Any], epoch: int) -> None:
    spec = OrderSpec(base=Slices.whole_shards(counts), shuffle_over_epochs=-1, **chosen)
    samples = everything(spec, epoch)
    assert len(set(samples)) == len(samples) == spec.total_samples(epoch)
    assert {sample[:2] for sample in samples} <= {sample[:2] for sample in all_samples(counts, range(1))}
    # A drawn slice is read completely, in one pass.
    drawn = Counter(sample[2] for sample in samples)
    assert set(drawn.values()) <= set(spec.slices.lengths.tolist())
    assert len(drawn) == len(spec.slices)


@given(counts_of_shards, options, st.data())
def test_parts_of_an_order_are_the_same(counts: list[int], chosen: dict[str, Any], data: st.DataObject) -> None:
    spec = OrderSpec(base=Slices.whole_shards(counts), **chosen)
    stream = spec.stream(data.draw(st.integers(0, spec.num_streams - 1)))
    order = stream.epoch(1)
    whole = triples(order)
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    shards, indices, passes = order.samples(start, stop)
    assert (shards.dtype, indices.dtype, passes.dtype) == (np.int32, np.int64, np.int64)
    assert list(zip(shards.tolist(), indices.tolist(), passes.tolist(), strict=True)) == whole[start:stop]
    assert [order.sample(position) for position in range(start, stop)] == whole[start:stop]


@given(st.integers(0, 40), st.integers(1, 12))
def test_lanes_are_read_in_turn(count: int, lanes: int) -> None:
    spec = OrderSpec(
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
    assert [index for _, index, _ in triples(spec.stream(0).epoch(0))] == expected


def test_the_order_never_changes() -> None:
    spec = OrderSpec(
        base=Slices.whole_shards([5, 3, 9]),
        num_streams=2,
        seed=11,
        source=1,
        max_samples_per_sequence=3,
        parallel_shard_iters=2,
        shuffle_buffer_size=4,
    )
    assert [sample[:2] for sample in triples(spec.stream(0).epoch(2))] == [
        (0, 4),
        (0, 3),
        (1, 1),
        (1, 2),
        (0, 2),
        (1, 0),
        (0, 0),
        (0, 1),
    ]
    assert [sample[:2] for sample in triples(spec.stream(1).epoch(2))] == [
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
    spec = OrderSpec(
        base=Slices.whole_shards([3, 0, 4]),
        num_streams=2,
        seed=5,
        shuffle=False,
        shuffle_buffer_size=100,
        parallel_shard_iters=8,
        max_samples_per_sequence=2,
    )
    for epoch in (0, 1):
        assert triples(spec.stream(0).epoch(epoch)) == [(0, i, 0) for i in range(3)]
        assert triples(spec.stream(1).epoch(epoch)) == [(2, i, 0) for i in range(4)]


def test_a_remainder_goes_round_the_streams() -> None:
    spec = OrderSpec(base=Slices.whole_shards([10]), num_streams=4, seed=0)
    sizes = [[spec.stream(stream).num_samples(epoch) for epoch in range(4)] for stream in range(4)]
    assert all(sum(of_stream) == 10 for of_stream in sizes)


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 9), st.integers(0, 4))
def test_an_offset_turns_the_remainder_of_training_to_other_streams(
    count: int, streams: int, offset: int, epoch: int
) -> None:
    base = Slices.whole_shards([count])
    plain, turned = (
        OrderSpec(base=base, num_streams=streams, seed=3, range_offset=off) for off in (0, offset % streams)
    )
    for stream in range(streams):
        other = (stream + offset) % streams
        assert turned.stream(stream).range_of(epoch) == plain.stream(other).range_of(epoch)
    assert Counter(everything(turned, epoch)) == all_samples([count], range(epoch, epoch + 1))


def test_draws_with_replacement_differ_from_epoch_to_epoch_and_never_change() -> None:
    base = Slices.whole_shards([1] * 12)
    spec = OrderSpec(base=base, num_streams=1, seed=3, shuffle_over_epochs=-1)
    drawn = [[shard for shard, *_ in everything(spec, epoch)] for epoch in range(3)]
    assert drawn == [
        [8, 4, 0, 11, 2, 11, 10, 9, 6, 10, 8, 0],
        [7, 11, 3, 1, 9, 6, 3, 4, 11, 11, 11, 7],
        [5, 10, 1, 2, 7, 9, 2, 6, 0, 10, 1, 8],
    ]


def test_epochs_seeds_and_sources_have_different_orders() -> None:
    def order(seed: int, source: int, epoch: int) -> tuple[Any, ...]:
        base = Slices.whole_shards([9] * 20)
        spec = OrderSpec(base=base, num_streams=1, seed=seed, source=source, shuffle_buffer_size=30)
        return tuple(sample[:2] for sample in triples(spec.stream(0).epoch(epoch)))

    orders = {order(seed, source, epoch) for seed in range(3) for source in range(3) for epoch in range(3)}
    assert len(orders) == 27


def test_runs_are_the_order_when_one_lane_is_read_without_a_window() -> None:
    base = Slices.whole_shards([7, 5, 9, 1])
    spec = OrderSpec(base=base, num_streams=2, seed=3, max_samples_per_sequence=4)
    for stream in range(2):
        order = spec.stream(stream).epoch(1)
        runs = order.runs()
        assert runs is not None
        assert [(s, i) for s, first, last in runs for i in range(first, last)] == [s[:2] for s in triples(order)]


def test_a_window_in_the_slice_keeps_runs_together() -> None:
    base = Slices.whole_shards([40, 50])
    spec = OrderSpec(base=base, num_streams=1, seed=3, shuffle_buffer_size=8, window_in_slice=True)
    order = spec.stream(0).epoch(0)
    samples = [sample[:2] for sample in triples(order)]
    begin = 0
    for shard, first, last in order.runs() or []:
        piece = samples[begin : begin + last - first]
        assert sorted(piece) == [(shard, index) for index in range(first, last)]
        assert piece != sorted(piece)
        begin += last - first
    assert begin == len(order)


@pytest.mark.parametrize("chosen", [{"parallel_shard_iters": 2}, {"shuffle_buffer_size": 2}])
def test_other_orders_are_not_made_of_runs(chosen: dict[str, int]) -> None:
    spec = OrderSpec(base=Slices.whole_shards([4, 4, 4]), num_streams=1, seed=0, **chosen)  # type: ignore[arg-type]
    assert spec.stream(0).epoch(0).runs() is None


def test_the_last_epoch_is_kept_and_a_spec_travels_light() -> None:
    spec = OrderSpec(base=Slices.whole_shards([4] * 500), num_streams=1, seed=0, max_samples_per_sequence=1)
    stream = spec.stream(0)
    size = len(pickle.dumps(OrderSpec(base=spec.base, num_streams=1, seed=0, max_samples_per_sequence=1)))
    assert stream.epoch(0) is stream.epoch(0)
    sent = pickle.dumps(spec)
    assert len(sent) == size
    assert pickle.loads(sent) == spec
    assert triples(pickle.loads(sent).stream(0).epoch(0)) == triples(stream.epoch(0))


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
        OrderSpec(**{"base": Slices.whole_shards([1]), "num_streams": 1, "seed": 0, **wrong})  # type: ignore[arg-type]


def test_places_outside_are_refused() -> None:
    spec = OrderSpec(base=Slices.whole_shards([3]), num_streams=1, seed=0)
    with pytest.raises(ConfigError, match="Stream 1 does not exist"):
        spec.stream(1)
    with pytest.raises(IndexError, match="Positions 1 to 4 leave an epoch of 3 samples"):
        spec.stream(0).epoch(0).samples(1, 4)
    with pytest.raises(IndexError, match="Position 3 is outside an epoch of 3 samples"):
        spec.stream(0).epoch(0).sample(3)


def test_ten_million_samples_in_little_memory() -> None:
    spec = OrderSpec(
        base=Slices.whole_shards(np.arange(10_000) % 3 * 700 + 300),
        num_streams=1,
        seed=1,
        shuffle_buffer_size=100_000,
        parallel_shard_iters=16,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    order = spec.stream(0).epoch(0)
    assert len(order) > 9_990_000
    offsets = np.concatenate([[0], np.cumsum(spec.base.stop)])
    seen = np.zeros(len(order), np.bool_)
    for start in range(0, len(order), 1 << 19):
        shards, indices, _ = order.samples(start, min(len(order), start + (1 << 19)))
        seen[offsets[shards] + indices] = True
    assert seen.all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def ranks(spec: OrderSpec, world_size: int) -> list[int]:
    sizes = [spec.stream(stream).num_samples(0) for stream in range(spec.num_streams)]
    return [sum(sizes[rank::world_size]) for rank in range(world_size)]


@given(st.integers(0, 200), st.sampled_from([1, 2, 6, 8, 12, 16]), st.integers(0, 40))
def test_remainders_of_validation_are_spread_over_the_ranks_of_every_layout(count: int, streams: int, off: int) -> None:
    spec = OrderSpec(
        base=Slices.whole_shards([count]), num_streams=streams, seed=0, shuffle=False, range_offset=off % streams
    )
    assert [triple[1] for triple in everything(spec, 0)] == list(range(count))
    for world_size in (size for size in range(1, streams + 1) if streams % size == 0):
        of_ranks = ranks(spec, world_size)
        assert sum(of_ranks) == count
        assert max(of_ranks) - min(of_ranks) <= 1


def test_shares_of_validation_as_earlier_releases_cut_them() -> None:
    spec = OrderSpec(base=Slices.whole_shards([24]), num_streams=16, seed=0, shuffle=False)
    old = OrderSpec(base=Slices.whole_shards([24]), num_streams=16, seed=0, shuffle=False, old_ranges=True)
    assert (ranks(spec, 2), ranks(old, 2)) == ([12, 12], [8, 16])
    assert [old.stream(stream).range_of(0) for stream in range(4)] == [(0, 1), (1, 3), (3, 4), (4, 6)]
