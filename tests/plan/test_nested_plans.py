"""Plans of plans of plans: whatever is nested, the same properties hold."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.mixtures import BlendPlan, ConcatPlan, EpochizedBlendPlan
from energon_dali.plan.plan import Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import long_property

_ROWS = 60


@st.composite
def sources(draw: st.DrawFn, streams: int, repeat: bool) -> SourcePlan:
    return SourcePlan(
        Slices.whole_shards(draw(st.lists(st.sampled_from([0, 1, 2, 7, 30]), min_size=1, max_size=3).filter(any))),
        streams,
        draw(st.integers(0, 2)),
        draw(st.integers(0, 50)),
        repeat=repeat,
        max_samples_per_sequence=draw(st.sampled_from([None, 1, 3])),
        parallel_shard_iters=draw(st.sampled_from([1, 2, 9])),
        shuffle_buffer_size=draw(st.sampled_from([0, 4, 100])),
        shuffle_over_epochs=draw(st.sampled_from([1, None, 2, -1])),
        window_in_slice=draw(st.booleans()),
        range_offset=draw(st.integers(0, streams - 1)),
    )


def ending(streams: int, depth: int) -> st.SearchStrategy[Plan]:
    source = sources(streams, repeat=False)
    leaf = st.one_of(source, st.builds(RepeatedPlan, source, st.sampled_from([0.01, 0.5, 1, 2.25, 12])))
    if not depth:
        return leaf
    members = st.lists(ending(streams, depth - 1), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        leaf, st.builds(ConcatPlan, members), st.builds(EpochizedBlendPlan, members, st.integers(0, 9), st.just(False))
    )


def blended(members: list[tuple[Plan, float]], seed: int) -> BlendPlan:
    return BlendPlan(tuple(plan for plan, _ in members), tuple(weight for _, weight in members), seed)


def endless(streams: int, depth: int) -> st.SearchStrategy[Plan]:
    source = sources(streams, repeat=True)
    if not depth:
        return source
    members = st.lists(ending(streams, depth - 1), min_size=1, max_size=3).map(tuple)
    weighted = st.tuples(endless(streams, depth - 1), st.sampled_from([0.0, 1e-9, 1.0, 3.0, 5e300]))
    blends = st.lists(weighted, min_size=1, max_size=3).filter(lambda pairs: any(weight for _, weight in pairs))
    return st.one_of(
        source,
        st.builds(EpochizedBlendPlan, members, st.integers(0, 9), st.just(True)),
        st.builds(blended, blends, st.integers(0, 4)),
    )


@st.composite
def nested(draw: st.DrawFn, kinds: tuple[object, ...] = (ending, endless)) -> tuple[Plan, int]:
    """Returns a plan and one of its streams."""
    streams = draw(st.sampled_from([1, 2, 3, 70]))
    kind = draw(st.sampled_from(kinds))
    return draw(kind(streams, 2)), draw(st.integers(0, streams - 1))  # type: ignore[operator]


def leaves(plan: Plan) -> list[SourcePlan]:
    """Returns the sources in the order in which they are written."""
    if isinstance(plan, SourcePlan):
        return [plan]
    if isinstance(plan, RepeatedPlan):
        return [plan.passes]
    assert isinstance(plan, BlendPlan | ConcatPlan | EpochizedBlendPlan)
    return [leaf for member in plan.members for leaf in leaves(member)]


@long_property(60)
@given(nested(), st.sampled_from([0, 5, 1000, 10_000_000, 1 << 41]), st.integers(0, _ROWS), st.integers(0, _ROWS))
def test_any_range_is_part_of_the_whole(chosen: tuple[Plan, int], origin: int, one: int, other: int) -> None:
    plan, stream = chosen
    start, stop = sorted((one, other))
    whole = plan.rows(origin, origin + _ROWS, stream).as_tuples()
    assert len(whole) == _ROWS
    for same in (plan, pickle.loads(pickle.dumps(plan))):
        assert same.rows(origin + start, origin + stop, stream).as_tuples() == whole[start:stop]
    sources = leaves(plan)
    assert plan.num_sources == len(sources)
    for source, shard, index, _ in whole:
        assert 0 <= index < sources[source].base.stop[shard], "the number of a source is its place in the tree"
    assert str(plan).count("SourcePlan(") == len(sources)


@long_property(40)
@given(nested((ending,)), st.sampled_from([0, 7, 10**6, 1 << 41]))
def test_epochs_hold_those_of_the_members(chosen: tuple[Plan, int], position: int) -> None:
    plan, stream = chosen
    epoch = plan.epoch_at(position, stream)
    start, stop = plan.epoch_start(epoch, stream), plan.epoch_start(epoch + 1, stream)
    assert start <= position < stop
    assert plan.epoch_length(epoch, stream) == stop - start
    if isinstance(plan, ConcatPlan | EpochizedBlendPlan):
        expected: Counter[tuple[int, ...]] = Counter()
        first_source = 0
        for member in plan.members:
            rows = member.rows(member.epoch_start(epoch, stream), member.epoch_start(epoch + 1, stream), stream)
            expected.update(rows.renumbered(first_source).as_tuples())
            first_source += member.num_sources
        assert Counter(plan.rows(start, stop, stream).as_tuples()) == expected


def tree(streams: int) -> BlendPlan:
    """Returns a blend of a blend, an epochized blend and a source."""

    def source(size: int, number: int, repeat: bool) -> SourcePlan:
        base = Slices.whole_shards([size, size])
        return SourcePlan(base, streams, 3, number, repeat=repeat, parallel_shard_iters=3, shuffle_buffer_size=20)

    inner = BlendPlan((source(30, 0, True), source(9, 1, True)), (1, 2), 1)
    ends = ConcatPlan((RepeatedPlan(source(20, 2, False), 1.5), source(11, 3, False)))
    epochs = EpochizedBlendPlan((ends, RepeatedPlan(source(4, 4, False), 0.3)), 2, repeat=True)
    return BlendPlan((inner, epochs, source(50, 5, True)), (2, 1, 1), 0)


@pytest.mark.parametrize("streams", [3, 128])
def test_threads_share_a_plan(streams: int) -> None:
    places = [(number * 997 % 20_000, number % 3) for number in range(12)]
    plan = tree(streams)
    expected = [plan.rows(start, start + 100, stream).as_tuples() for start, stream in places]
    shared = tree(streams)  # nothing of it is computed yet
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda place: shared.rows(place[0], place[0] + 100, place[1]).as_tuples(), places * 2)
    assert list(found) == expected * 2


@pytest.mark.parametrize("streams", [3, 128])
def test_rows_belong_to_the_caller(streams: int) -> None:
    """Whoever writes into the arrays changes nothing that a plan keeps."""
    plan = tree(streams)
    parts: list[Plan] = [plan, *plan.members, *leaves(plan)]
    for part in parts:
        for start in (0, 40, 2000):
            expected = part.rows(start, start + 50, 1).as_tuples()
            rows = part.rows(start, start + 50, 1)
            for column in (rows.sources, rows.shards, rows.indices, rows.passes):
                column[:] = -1
            assert part.rows(start, start + 50, 1).as_tuples() == expected
    numbers, before = plan.draws(5000, 5100, 1)
    expected_draws = numbers.tolist(), before.tolist()
    numbers[:], before[:] = -1, -1
    assert tuple(found.tolist() for found in plan.draws(5000, 5100, 1)) == expected_draws


def test_a_blend_shows_its_tree() -> None:
    lines = str(tree(3)).splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 4, 2, 4, 6, 8, 6, 4, 6, 2]
    assert lines[:2] == ["BlendPlan(weights=2, 1, 1)", "  BlendPlan(weights=1, 2)"]
    assert lines[6] == "      RepeatedPlan(1.5 times)"


def test_what_ends_cannot_be_blended_and_what_does_not_end_cannot_be_followed() -> None:
    plan = tree(2)
    _, epochs, source = plan.members
    assert isinstance(epochs, EpochizedBlendPlan)
    with pytest.raises(ConfigError, match="a plan that ends"):
        BlendPlan((source, epochs.members[0]), (1, 1), 0)
    for wrong in (plan, epochs):
        with pytest.raises(ConfigError, match="never ends"):
            ConcatPlan((epochs.members[0], wrong))
        with pytest.raises(ConfigError, match="never ends"):
            EpochizedBlendPlan((epochs.members[0], wrong), 0, repeat=False)
    assert not (BlendPlan((source, epochs.members[0]), (1, 0), 0).rows(0, 50).sources).any(), "weight 0: never drawn"


def test_another_position_in_a_tree_draws_otherwise() -> None:
    plan = tree(2)
    columns = {tuple(plan.at_position(number).rows(0, 100).sources.tolist()) for number in range(5)}
    assert len(columns) == 5
    assert np.bincount(plan.at_position(3).rows(0, 4096).sources).tolist()[5] == 1024
