from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.datasets.wrappers.shuffle_buffer import ShuffleBufferDataset
from energon_dali.errors import ConfigError, FatalSampleError, LayoutError, SkipSample, StateError
from energon_dali.task_encoder.stateless import stateless
from tests.datasets.oracle import Counting, check_resume, config, silent, take


def square(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] % 5 == 3:
        raise SkipSample
    if sample["number"] % 7 == 4:
        raise ValueError("seven")
    return {**sample, "square": sample["number"] ** 2}


def as_many_as_number_mod_3(sample: dict[str, Any]) -> Any:
    for copy in range(sample["number"] % 3):
        yield {**sample, "copy": copy}


def the_same_twice(sample: dict[str, Any]) -> Any:
    yield sample
    yield sample


def changed_in_place(sample: dict[str, Any]) -> dict[str, Any]:
    sample["number"] += 100
    return sample


def as_batch(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"__restore_key__": (), "numbers": [sample["number"] for sample in samples]}


def in_halves(samples: list[dict[str, Any]]) -> Any:
    middle = len(samples) // 2
    yield as_batch(samples[:middle])
    yield as_batch(samples[middle:])


def by_parity(sample: dict[str, Any]) -> tuple[int, int | None]:
    if sample["number"] == 6:
        raise SkipSample
    return sample["number"] % 2, None


def own_size(sample: dict[str, Any]) -> tuple[int, int | None]:
    return sample["number"] % 3, 2 + sample["number"] % 3


@stateless(restore_seeds=True)
def by_lot(sample: dict[str, Any]) -> tuple[int, int | None]:
    return random.randrange(3), None


def pairs(samples: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    ordered = sorted(samples, key=lambda sample: -sample["number"])
    return [ordered[start : start + 2] for start in range(0, len(ordered) - 1, 2)]


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": 2 * sample["number"]}


def bordered(dataset: SavableDataset[Any], block_size: int = 4) -> SavableDataset[Any]:
    return WorkerBorder(dataset, block_size=block_size)


def source(streams: int, total: int = 23, repeat: bool = False) -> Counting:
    return Counting(total, config(streams, global_error_handler=silent), repeat=repeat)


TREES = {
    "map": lambda s: MapDataset(s, square),
    "generator": lambda s: MapDataset(s, as_many_as_number_mod_3),
    "generators in each other": lambda s: MapDataset(MapDataset(s, as_many_as_number_mod_3), as_many_as_number_mod_3),
    "one object twice": lambda s: MapDataset(MapDataset(s, the_same_twice), changed_in_place),
    "one object twice, handed over": lambda s: MapDataset(bordered(MapDataset(s, the_same_twice)), changed_in_place),
    "batch": lambda s: BatchDataset(s, 4, as_batch),
    "batch, last dropped": lambda s: BatchDataset(s, 4, as_batch, drop_last=True),
    "batch of generator": lambda s: BatchDataset(MapDataset(s, as_many_as_number_mod_3), 4, as_batch),
    "generator batcher": lambda s: BatchDataset(s, 4, in_halves),
    "handed over": lambda s: bordered(MapDataset(s, square)),
    "handed over, batched": lambda s: BatchDataset(bordered(MapDataset(s, as_many_as_number_mod_3)), 3, as_batch),
    "group": lambda s: GroupBatchDataset(s, 3, by_parity, as_batch),
    "group, own sizes": lambda s: GroupBatchDataset(s, None, own_size, as_batch),
    "group, by lot": lambda s: GroupBatchDataset(s, 3, by_lot, as_batch),
    "group, last dropped": lambda s: GroupBatchDataset(s, 3, by_parity, as_batch, drop_last=True),
    "group, generator batcher": lambda s: GroupBatchDataset(s, 4, by_parity, in_halves),
    "packing": lambda s: PackingDataset(s, 6, pairs, as_batch),
    "packing with encoder": lambda s: PackingDataset(s, 5, pairs, as_batch, sample_encoder=double),
    "packing, generator packer": lambda s: BatchDataset(PackingDataset(s, 6, pairs, in_halves), 2, list),
    "packing after the border": lambda s: PackingDataset(bordered(MapDataset(s, square)), 6, pairs, as_batch),
    "virtual epochs": lambda s: EpochizeDataset(MapDataset(s, square), 5),
    "limit": lambda s: LimitDataset(BatchDataset(s, 2, as_batch), 3),
    "virtual epochs, batched": lambda s: BatchDataset(EpochizeDataset(MapDataset(s, square), 7), 2, as_batch),
    "limit, batched": lambda s: BatchDataset(LimitDataset(MapDataset(s, as_many_as_number_mod_3), 7), 2, as_batch),
}


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("name", TREES)
def test_a_restore_at_any_element_continues_exactly(name: str, streams: int) -> None:
    check_resume(lambda: TREES[name](source(streams)), count=200, epochs=3)


@pytest.mark.parametrize("name", ["batch", "generator", "packing", "handed over, batched", "virtual epochs"])
def test_endless_sources_too(name: str) -> None:
    check_resume(lambda: TREES[name](source(2, repeat=True)), count=40, epochs=3)


@pytest.mark.parametrize("name", ["map", "batch", "handed over, batched", "generator batcher"])
def test_a_restore_reads_nothing_that_was_delivered(name: str) -> None:
    def made(dataset: SavableDataset[Any]) -> list[int]:
        while dataset.children:
            (dataset,) = dataset.children
        assert isinstance(dataset, Counting)
        return dataset.made

    check_resume(lambda: TREES[name](source(2)), count=200, epochs=2, made=made)


def without_a_name(state: Any) -> Iterator[Any]:
    """Yields copies of a state, each without one of its entries."""
    for name, value in state.items():
        yield {other: kept for other, kept in state.items() if other != name}
        if isinstance(value, dict):
            for inner in without_a_name(value):
                yield {**state, name: inner}


@pytest.mark.parametrize("name", [*TREES, "shuffle buffer"])
def test_a_damaged_state_is_refused_at_once_or_continues(name: str) -> None:
    def make() -> Any:
        return ShuffleBufferDataset(source(1), 5) if name == "shuffle buffer" else TREES[name](source(1))

    live: Any = RankIterator(make())
    assert len(list(islice(live, 2))) == 2
    state = live.state_dict()["streams"]["0"]["state"]
    words = []
    for other in without_a_name(state):
        restored: Any = RankIterator(make())
        try:
            restored.load_state_dict({"given": 2, "streams": {"0": {"count": 2, "ended": False, "state": other}}})
        except StateError as error:
            words.append(str(error))
        else:
            next(restored)
    assert words
    assert all("of another release" in text for text in words)


@pytest.mark.parametrize("name", TREES)
def test_every_tree_shows_itself_and_its_config(name: str) -> None:
    tree = TREES[name](source(1))
    assert "Counting" in str(tree).splitlines()[-1]
    assert tree.config() == TREES[name](source(1)).config()


def test_every_element_of_a_stateless_tree_can_be_made_again() -> None:
    tree = BatchDataset(
        MapDataset(source(2), as_many_as_number_mod_3, stateless_map_fn=True), 3, as_batch, batcher_stateless=True
    )
    batches = take(tree, 100)
    assert len(batches) > 5
    for batch in batches:
        assert tree.restore_sample(json.loads(json.dumps(batch["__restore_key__"]))) == batch


def test_a_pack_can_be_made_again() -> None:
    tree = PackingDataset(
        source(1), 5, pairs, as_batch, sample_encoder=double, final_packer_stateless=True, sample_encoder_stateless=True
    )
    for pack in take(tree, 100):
        assert tree.restore_sample(json.loads(json.dumps(pack["__restore_key__"]))) == pack


def test_a_key_of_another_dataset_is_refused() -> None:
    with pytest.raises(StateError, match="was not made by MapDataset"):
        MapDataset(source(1), square).restore_sample(("BatchDataset", 0))


def test_a_state_does_not_load_once_iteration_has_begun() -> None:
    dataset = source(1)
    state = dataset.state_dict()
    next(iter(dataset))
    with pytest.raises(StateError, match="before the first element"):
        dataset.load_state_dict(state)


def test_a_state_without_the_streams_of_this_rank_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"\[1, 2\] are missing"):
        source(3).load_state_dict(source(1).state_dict())


def test_elements_come_in_the_same_order_for_every_layout() -> None:
    def of_rank(rank: int, world_size: int) -> list[int]:
        from energon_dali.worker_config import WorkerConfig

        job = WorkerConfig(rank=rank, world_size=world_size, num_workers=0, num_streams=6)
        return [sample["number"] for sample in take(Counting(30, job), 100)]

    whole = of_rank(0, 1)
    assert whole == list(range(30))
    for world_size in (2, 3, 6):
        ranks = [of_rank(rank, world_size) for rank in range(world_size)]
        assert [number for row in zip(*ranks, strict=True) for number in row] == whole


def test_a_failing_hook_loses_only_its_sample_and_is_named() -> None:
    from energon_dali.datasets.rank_iterator import RankIterator

    live = RankIterator(MapDataset(source(1), square))
    numbers = [sample["number"] for sample in live]
    assert numbers == [n for n in range(23) if n % 5 != 3 and n % 7 != 4]
    record = live.metrics.snapshot()
    assert record["counts"]["samples.skipped"] == len([n for n in range(23) if n % 5 == 3])
    assert [failure["key"] for failure in record["failures"]] == ["sample4", "sample11"]
    assert all(failure["reason"] == "ValueError: seven" for failure in record["failures"])


def test_too_many_failures_in_a_row_end_the_run() -> None:
    def always(sample: Any) -> Any:
        raise ValueError("never works")

    with pytest.raises(FatalSampleError, match="failed 3 times in a row"):
        take(MapDataset(source(1), always, failure_tolerance=3), 5)


def test_an_error_that_cannot_heal_ends_the_run_at_once() -> None:
    def broken(sample: Any) -> Any:
        return undefined_name  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(FatalSampleError, match="undefined_name"):
        take(MapDataset(source(1), broken), 5)


def test_a_hook_that_returns_a_generator_is_an_error() -> None:
    with pytest.raises(FatalSampleError, match=r"hidden returned a generator.*yield from"):
        take(MapDataset(source(1), lambda sample: as_many_as_number_mod_3(sample), stage="hidden"), 1)


def test_a_device_error_is_never_counted_as_a_bad_sample() -> None:
    def out_of_memory(sample: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        take(MapDataset(source(1), out_of_memory), 5)


def test_a_skip_in_the_group_criterion_drops_that_sample() -> None:
    batches = take(GroupBatchDataset(source(1, total=9), 3, by_parity, as_batch), 10)
    numbers = sorted(number for batch in batches for number in batch["numbers"])
    assert numbers == [0, 1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize(("batch_size", "criterion"), [(3, own_size), (None, by_parity)])
def test_either_the_dataset_or_the_criterion_says_how_large_groups_are(batch_size: int | None, criterion: Any) -> None:
    with pytest.raises(ConfigError, match="returned the batch size"):
        take(GroupBatchDataset(source(1), batch_size, criterion, as_batch), 1)


def test_restored_seeds_give_the_same_numbers_when_made_again() -> None:
    @stateless(restore_seeds=True)
    def draw(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "drawn": random.random()}

    tree = MapDataset(source(2), draw, stateless_map_fn=True)
    samples = take(tree, 10)
    assert len({sample["drawn"] for sample in samples}) == 10
    random.seed(1)
    before = random.getstate()
    for sample in reversed(samples):
        assert tree.restore_sample(sample["__restore_key__"]) == sample
    assert random.getstate() == before


@pytest.mark.parametrize("streams", [1, 3])
def test_no_virtual_epoch_is_empty_where_finite_data_ends_with_one(streams: int) -> None:
    def make() -> SavableDataset[Any]:
        return EpochizeDataset(Counting(10, config(streams)), 5)

    dataset = make()
    assert [len(list(dataset)) for _ in range(5)] == [5] * 5
    check_resume(make, count=100, epochs=5)
