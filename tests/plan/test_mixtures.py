"""Plans over several plans: any range of them, their epochs, and their sources."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.mixtures import BlendPlan, ConcatPlan, EpochizedBlendPlan, weighted_draws
from energon_dali.plan.plan import MOST_ROWS, Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import long_property

sizes_of_sources = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)
numbers_of_streams = st.sampled_from([1, 2, 3, 70])


def source(size: int, number: int, streams: int, *, repeat: bool = False, shuffle: bool = True) -> SourcePlan:
    return SourcePlan(
        Slices.whole_shards([size // 2, size - size // 2]),
        streams,
        7,
        number,
        repeat=repeat,
        shuffle=shuffle,
        max_samples_per_sequence=3,
        parallel_shard_iters=2,
        shuffle_buffer_size=4,
    )


def blend(sizes: list[int], streams: int) -> BlendPlan:
    members = tuple(source(size, number, streams, repeat=True) for number, size in enumerate(sizes))
    return BlendPlan(members, tuple(float(bool(size) * (1 + n % 3)) for n, size in enumerate(sizes)), 5)


def epochized(sizes: list[int], streams: int, *, repeat: bool = False) -> EpochizedBlendPlan:
    times = [1, 0.5, 2.25, 3]
    members = (RepeatedPlan(source(size, n, streams), times[n % 4]) for n, size in enumerate(sizes))
    return EpochizedBlendPlan(tuple(members), 5, repeat)


def concat(sizes: list[int], streams: int) -> ConcatPlan:
    return ConcatPlan(tuple(source(size, n, streams, shuffle=False) for n, size in enumerate(sizes)))


def plans(sizes: list[int], streams: int) -> list[Plan]:
    return [
        blend(sizes, streams),
        epochized(sizes, streams),
        epochized(sizes, streams, repeat=True),
        concat(sizes, streams),
    ]


@long_property()
@given(sizes_of_sources, numbers_of_streams, st.data())
def test_any_range_is_part_of_the_whole(sizes: list[int], streams: int, data: st.DataObject) -> None:
    stream = data.draw(st.integers(0, streams - 1))
    for plan in plans(sizes, streams):
        length = 120 if streams < 70 else 40  # nearly each row is of another epoch
        if isinstance(plan, ConcatPlan) and not plan.epoch_length(0, stream):
            continue
        whole = plan.rows(0, length, stream).as_tuples()
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        for part in (plan, pickle.loads(pickle.dumps(plan))):
            assert part.rows(start, stop, stream).as_tuples() == whole[start:stop]


@long_property()
@given(sizes_of_sources, numbers_of_streams)
def test_epochs_hold_those_of_the_members(sizes: list[int], streams: int) -> None:
    for plan in (epochized(sizes, streams), concat(sizes, streams)):
        for epoch in range(3):
            for stream in range(0, streams, 7):
                start, stop = plan.epoch_start(epoch, stream), plan.epoch_start(epoch + 1, stream)
                rows = plan.rows(start, stop, stream) if start < stop else plan.rows(0, 0, stream)
                expected: Counter[tuple[int, ...]] = Counter()
                for number, member in enumerate(plan.members):
                    first, last = member.epoch_start(epoch, stream), member.epoch_start(epoch + 1, stream)
                    if first < last:
                        expected.update((number, *row[1:]) for row in member.rows(first, last, stream).as_tuples())
                assert Counter(rows.as_tuples()) == expected
                if isinstance(plan, ConcatPlan):
                    assert rows.sources.tolist() == sorted(rows.sources.tolist())
                elif start < stop:
                    assert plan.epoch_at(start, stream) == epoch


@long_property()
@given(sizes_of_sources, numbers_of_streams, st.integers(0, 10**7))
def test_a_blend_takes_the_rows_of_its_members_one_by_one(sizes: list[int], streams: int, start: int) -> None:
    plan = blend(sizes, streams)
    stream = start % streams
    draws, before = plan.draws(start, start + 300, stream)
    assert draws.tolist() == weighted_draws(plan.weights, plan.seed, stream, start, 300).tolist()
    assert before.sum() == start
    rows = plan.rows(start, start + 300, stream).as_tuples()
    for number, member in enumerate(plan.members):
        mine = [row for row in rows if row[0] == number]
        first = int(before[number])
        if mine:
            wanted = member.rows(first, first + len(mine), stream).as_tuples()
            assert [row[1:] for row in mine] == [row[1:] for row in wanted]


def test_counts_in_closed_form_are_those_of_counting() -> None:
    plan = blend([5, 9, 0, 33, 2], 2)
    draws = plan.rows(0, 20_000, 1).sources
    for start in (0, 1, 1023, 1024, 5000, 19_999):
        assert plan.draws(start, start, 1)[1].tolist() == np.bincount(draws[:start], minlength=5).tolist()


def test_rows_of_a_blend_of_blends() -> None:
    """Sources are numbered in the order in which they are written."""
    inner = blend([4, 3], 1)
    plan = BlendPlan((source(2, 9, 1, repeat=True), inner, source(3, 8, 1, repeat=True)), (1, 2, 1), 0)
    assert plan.num_sources == 4
    rows = plan.rows(0, 4096)
    assert np.bincount(rows.sources).tolist() == [1024, 683, 1365, 1024]
    of_inner = [(s - 1, *rest) for s, *rest in rows.as_tuples() if s in (1, 2)]
    assert of_inner == [tuple(row) for row in inner.rows(0, len(of_inner)).as_tuples()]


def test_rows_that_are_written_out() -> None:
    def in_order(size: int, *, repeat: bool = False, shuffle: bool = True) -> SourcePlan:
        return SourcePlan(Slices.whole_shards([size]), 1, 0, shuffle=shuffle, repeat=repeat, shuffle_over_epochs=None)

    concatenated = ConcatPlan((in_order(2, shuffle=False), in_order(3, shuffle=False)))
    assert concatenated.rows(1, 7).as_tuples() == [
        *[(0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 1, 0), (1, 0, 2, 0)],
        *[(0, 0, 0, 0), (0, 0, 1, 0)],  # the next epoch
    ]
    mixed = BlendPlan((in_order(2, repeat=True), in_order(3, repeat=True)), (1, 3), 0)
    assert mixed.rows(0, 8).as_tuples() == [
        *[(0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 1, 0), (1, 0, 2, 0)],
        *[(1, 0, 0, 1), (1, 0, 1, 1), (0, 0, 1, 0), (1, 0, 2, 1)],
    ]
    epochs = EpochizedBlendPlan((RepeatedPlan(in_order(2), 1), RepeatedPlan(in_order(2), 2)), 0, repeat=False)
    assert epochs.rows(0, 6).as_tuples() == [
        *[(0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 1, 1), (0, 0, 1, 0)],
    ]


def test_a_jump_far_ahead_takes_no_counting() -> None:
    members = tuple(source(1000 + number, number, 4, repeat=True) for number in range(100))
    plan = BlendPlan(members, tuple(1.0 + number for number in range(100)), 0)
    for row in (10_000_000, 1 << 45):
        rows = plan.rows(row, row + 10, 3)
        assert rows.as_tuples()[4:] == plan.rows(row + 4, row + 10, 3).as_tuples()


def test_a_thousand_members_of_a_large_job() -> None:
    """Small sources that are dealt are computed together: the rows are those of each alone."""
    members = tuple(source(1 + number % 30, number, 128, repeat=True) for number in range(1000))
    plan = BlendPlan(members, (1.0,) * 1000, 0)
    assert all(member.is_dealt for member in members)
    draws, before = plan.draws(5000, 7000, 77)
    rows = plan.rows(5000, 7000, 77)
    assert rows.sources.tolist() == draws.tolist()
    for number in range(0, 1000, 50):
        mine = np.flatnonzero(draws == number)
        first = int(before[number])
        alone = members[number].rows(first, first + len(mine), 77).as_tuples()
        assert [row[1:] for row in rows.take(mine).as_tuples()] == [row[1:] for row in alone]


def test_plans_are_values() -> None:
    for index in range(4):
        one, other, changed = plans([5, 8], 2)[index], plans([5, 8], 2)[index], plans([5, 9], 2)[index]
        size = len(pickle.dumps(one))
        one.rows(0, 50, 1)
        assert one == other != changed
        assert hash(one) == hash(other)
        assert len(pickle.dumps(one)) == size
        assert copy.deepcopy(one).rows(3, 9).as_tuples() == other.rows(3, 9).as_tuples()
        assert type(one).__name__ in str(one)
        assert str(one).count("SourcePlan(") == 2
        assert one.at_position(1) != one.at_position(2)
        assert one.at_position(1).rows(0, 30).as_tuples() != one.rows(0, 30).as_tuples() or isinstance(one, ConcatPlan)


def test_wrong_plans_and_places_are_refused() -> None:
    endless, ending = source(3, 0, 1, repeat=True), source(3, 0, 1)
    wrong = [
        (lambda: BlendPlan((), (), 0), "at least one"),
        (lambda: BlendPlan((endless,), (1, 2), 0), "give one each"),
        (lambda: BlendPlan((ending,), (1,), 0), "a plan that ends"),
        (lambda: BlendPlan((endless, source(3, 0, 2, repeat=True)), (1, 1), 0), "different numbers of streams"),
        (lambda: BlendPlan((endless,), (0,), 0), "at least one of them positive"),
        (lambda: ConcatPlan((endless,)), "never ends"),
        (lambda: EpochizedBlendPlan((endless,), 0, False), "never ends"),
        (lambda: RepeatedPlan(endless, 1), "repeats without an end"),
    ]
    for make, words in wrong:
        with pytest.raises(ConfigError, match=words):
            make()
    for plan in plans([3, 2], 1):
        for start, stop, stream in ((-1, 2, 0), (3, 2, 0), (0, 1, 1), (0, 1 << 49, 0)):
            with pytest.raises(IndexError, match="not exist"):
                plan.rows(start, stop, stream)
    for empty in (epochized([0, 0], 1), concat([0], 1)):
        with pytest.raises(IndexError, match="no source has a sample"):
            empty.rows(0, 1)


def test_positions_may_be_integers_of_numpy() -> None:
    start = 1 << 40
    for plan in (*plans([5, 8], 2), source(9, 0, 2), source(9, 0, 128, repeat=True)):
        found = plan.rows(np.int64(start), np.int64(start + 5), np.int32(1))
        assert found.as_tuples() == plan.rows(start, start + 5, 1).as_tuples()


@pytest.mark.parametrize("over_epochs", [1, 2, -1])
@pytest.mark.parametrize("streams", [1 << 14, 100_000, 10**7])
def test_the_last_rows_that_64_bits_can_number(streams: int, over_epochs: int) -> None:
    dealt = SourcePlan(Slices.whole_shards([3]), streams, 0, repeat=True, shuffle_over_epochs=over_epochs)
    stop = min(MOST_ROWS, (1 << 62) // streams)
    for plan in (
        dealt,
        replace(dealt, window_in_slice=True),
        BlendPlan((dealt, dealt.at_position(1)), (1, 0), 0),
        EpochizedBlendPlan((replace(dealt, repeat=False),), 0, repeat=True),
    ):
        rows = plan.rows(stop - 3, stop, streams - 1).as_tuples()
        assert len({row[3] for row in rows}) > 1
        assert all(source == shard == 0 and 0 <= index < 3 and number > 0 for source, shard, index, number in rows)
        assert plan.rows(stop - 1, stop, streams - 1).as_tuples() == rows[2:]
        with pytest.raises(IndexError, match=f"stop <= {stop}"):
            plan.rows(stop, stop + 1, 0)
