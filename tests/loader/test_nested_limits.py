"""Limits and virtual epochs, of a rank and inside other datasets: where a restored epoch ends, on how many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from energon_dali import BlendDataset, ConcatDataset, EpochizeDataset, LimitDataset, StateError, WorkerConfig
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.wrappers.repeat import RepeatDataset
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.loader.loader_state import merge_states, split_state
from energon_dali.loader.savable_loader import SavableDataLoader
from tests.loader.numbers_dataset import NumbersDataset
from tests.part import sampled

STREAMS = 6


def limits(config: WorkerConfig, length: int, kind: type[EpochizeDataset]) -> SavableDataset[Any]:
    """Returns a blend of a limited dataset and another one, then a third, again and again."""
    limited = kind(NumbersDataset([9] * STREAMS, config), length)
    other = NumbersDataset([4] * STREAMS, config, make=lambda *place: ("other", *place))
    last = NumbersDataset([1] * STREAMS, config, make=lambda *place: ("last", *place))
    return RepeatDataset(ConcatDataset(BlendDataset((limited, 1), (other, 1)), last))


def loaders(world: int, length: int, kind: type[EpochizeDataset], state: Any = None) -> list[SavableDataLoader[Any]]:
    """Returns the loaders of all ranks."""
    made = []
    for rank in range(world):
        config = WorkerConfig(rank=rank, world_size=world, num_workers=0, num_streams=STREAMS)
        made.append(get_savable_loader(limits(config, length, kind)))
        if isinstance(state, list):
            made[-1].restore_state_rank(state[rank])
        elif state is not None:
            made[-1].restore_state_global(state)
    return made


def taken(ranks: Sequence[SavableDataLoader[Any]], count: int) -> list[Any]:
    """Returns the next `count` elements of the job."""
    rows = [list(islice(loader, count // len(ranks))) for loader in ranks]
    return [element for row in zip(*rows, strict=True) for element in row]


@pytest.mark.parametrize("kind", [LimitDataset, EpochizeDataset])
@pytest.mark.parametrize("length", [18, 7, 2])
@pytest.mark.parametrize(("saved", "restored"), sampled([(1, 2), (2, 1), (2, 3), (3, 6), (6, 1), (2, 2)], 3))
@pytest.mark.parametrize("redistributed", [False, True])
def test_a_limit_inside_another_dataset_counts_the_elements_of_the_job(
    kind: type[EpochizeDataset], length: int, saved: int, restored: int, *, redistributed: bool
) -> None:
    whole = taken(loaders(saved, length, kind), 240)
    assert whole == taken(loaders(1, length, kind), 240)
    ranks = loaders(saved, length, kind)
    assert taken(ranks, 54) == whole[:54]
    state: Any = merge_states([loader.save_state_rank() for loader in ranks])
    if redistributed:
        state = split_state(state, restored)
    assert taken(loaders(restored, length, kind, state), 180) == whole[54:234]


def test_another_length_is_another_dataset() -> None:
    (loader,) = loaders(1, 12, LimitDataset)
    taken([loader], 5)
    with pytest.raises(StateError, match=r"length was 12, is 24"):
        loaders(1, 24, LimitDataset, merge_states([loader.save_state_rank()]))


def test_a_limit_around_everything_may_change_with_the_ranks() -> None:
    def job(world: int, rank: int) -> Any:
        config = WorkerConfig(rank=rank, world_size=world, num_workers=0, num_streams=STREAMS)
        return get_savable_loader(LimitDataset(NumbersDataset([9] * STREAMS, config), 6))

    loader = job(1, 0)
    first = list(islice(loader, 2))
    state = merge_states([loader.save_state_rank()])
    rest = []
    for rank in range(2):
        with job(2, rank) as other:
            other.restore_state_global(state)
            rest.append(list(islice(other, 2)))
    order = [element for row in zip(*rest, strict=True) for element in row]
    assert [stream for stream, *_ in [*first, *order]] == list(range(6))


def epochs(length: int, world: int = 1, rank: int = 0) -> SavableDataLoader[Any]:
    config = WorkerConfig(rank=rank, world_size=world, num_workers=0, num_streams=2)
    return get_savable_loader(EpochizeDataset(NumbersDataset([100, 100], config), length))


def test_an_epoch_that_became_shorter_ends_where_its_remainder_does() -> None:
    loader = epochs(10)
    first = list(islice(loader, 7))
    shorter = epochs(5)
    shorter.restore_state_rank(loader.save_state_rank())
    found = [list(shorter) for _ in range(2)]
    assert [len(epoch) for epoch in found] == [3, 5]
    assert [*first, *found[0], *found[1]] == list(epochs(15))


@pytest.mark.parametrize("merged", [False, True])
def test_the_epoch_of_each_rank_goes_on_where_it_was(*, merged: bool) -> None:
    ranks = [epochs(10, 2, rank) for rank in range(2)]
    for rank, loader in enumerate(ranks):
        assert len(list(islice(loader, 4 + rank))) == 4 + rank
    states = [loader.save_state_rank() for loader in ranks]
    for rank, state in enumerate(states):
        restored = epochs(10, 2, rank)
        restored.restore_state_global(states if merged else state)
        assert len(list(restored)) == 6 - rank
