"""Every wrapper alone: what it yields, and that a restore at any element continues exactly."""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.mixing.mixture_dataset import ConcatDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.filter import FilterDataset
from energon_dali.datasets.wrappers.gc import GcDataset
from energon_dali.datasets.wrappers.iter_map import IterMapDataset
from energon_dali.datasets.wrappers.log_sample import LogSampleDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.datasets.wrappers.repeat import RepeatDataset
from energon_dali.datasets.wrappers.shuffle_buffer import BufferOrder, ShuffleBufferDataset
from energon_dali.errors import ConfigError, DatasetError, FatalSampleError, SkipSample
from energon_dali.task_encoder.stateless import stateless
from tests.datasets.oracle import Counting, check_resume, config, silent, take

Sample = dict[str, Any]


def source(streams: int, total: int = 23, repeat: bool = False) -> Counting:
    return Counting(total, config(streams, global_error_handler=silent), repeat=repeat)


def numbers(dataset: SavableDataset[Any], count: int = 1000) -> list[int]:
    return [sample["number"] for sample in take(dataset, count)]


def some_fail(sample: Sample) -> Sample:
    if sample["number"] % 5 == 3:
        raise SkipSample
    if sample["number"] % 7 == 4:
        raise ValueError("seven")
    return sample


def not_by_three(sample: Sample) -> bool:
    if sample["number"] == 5:
        raise ValueError("five")
    return bool(sample["number"] % 3)


def as_often_as_its_number_mod_3(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        for copy in range(sample["number"] % 3):
            yield {**sample, "copy": copy}


def two_as_one(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        if sample["number"] == 8:
            raise ValueError("eight")
        yield {**sample, "other": next(samples, {}).get("number")}


def running_sum(samples: Iterator[Sample]) -> Iterator[Sample]:
    total = 0
    for sample in samples:
        total += sample["number"]
        yield {**sample, "sum": total}


def the_same_twice(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        yield sample
        yield sample


def changed_in_place(sample: Sample) -> Sample:
    sample["number"] += 100
    return sample


class SavableSum:
    """A running sum that saves itself."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self.samples = samples
        self.total = 0

    def __iter__(self) -> SavableSum:
        return self

    def __next__(self) -> Sample:
        sample = next(self.samples)
        self.total += sample["number"]
        return {**sample, "sum": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def as_batch(samples: list[Sample]) -> Sample:
    return {"__restore_key__": (), "numbers": [sample["number"] for sample in samples]}


TREES = {
    "repeat 3": lambda s: RepeatDataset(MapDataset(s, some_fail), repeats=3),
    "repeat 1.5": lambda s: RepeatDataset(s, repeats=1.5),
    "repeat 0.3": lambda s: BatchDataset(RepeatDataset(MapDataset(s, some_fail), repeats=0.3), 2, as_batch),
    "repeat, not again": lambda s: RepeatDataset(s, repeats=2, restart=False),
    "endless repeat": lambda s: EpochizeDataset(RepeatDataset(s), 17),
    "filter": lambda s: FilterDataset(MapDataset(s, some_fail), filter_fn=not_by_three),
    "iter map, stateless": lambda s: IterMapDataset(s, as_often_as_its_number_mod_3, stateless_iter_fn=True),
    "iter map, one object twice": lambda s: MapDataset(
        IterMapDataset(s, the_same_twice, stateless_iter_fn=True), changed_in_place, stateless_map_fn=True
    ),
    "iter map, two as one": lambda s: IterMapDataset(s, two_as_one, stateless_iter_fn=True),
    "iter map, replayed": lambda s: IterMapDataset(MapDataset(s, some_fail), running_sum),
    "iter map, replayed, failing": lambda s: IterMapDataset(s, two_as_one),
    "iter map, savable": lambda s: IterMapDataset(s, SavableSum),
    "shuffle": lambda s: ShuffleBufferDataset(MapDataset(s, some_fail), 4),
    "shuffle, growing": lambda s: ShuffleBufferDataset(s, 5, first=2),
    "shuffle, large": lambda s: BatchDataset(ShuffleBufferDataset(s, 50, first=1), 3, as_batch),
    "gc": lambda s: BatchDataset(GcDataset(s, every_n_iter=2, in_trainer=True), 3, as_batch),
    "log": lambda s: LogSampleDataset(s, "train"),
    "all at once": lambda s: LimitDataset(
        ShuffleBufferDataset(
            FilterDataset(
                RepeatDataset(IterMapDataset(MapDataset(s, some_fail), running_sum), repeats=2.5),
                filter_fn=not_by_three,
            ),
            6,
            first=3,
        ),
        40,
    ),
}


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("name", TREES)
def test_a_restore_at_any_element_continues_exactly(name: str, streams: int) -> None:
    check_resume(lambda: TREES[name](source(streams)), count=150, epochs=3)


@pytest.mark.parametrize("name", ["filter", "iter map, stateless", "iter map, savable", "shuffle", "shuffle, growing"])
def test_endless_sources_too(name: str) -> None:
    check_resume(lambda: TREES[name](source(2, repeat=True)), count=60)


@pytest.mark.parametrize("name", [name for name in TREES if name not in ("gc", "all at once")])
def test_every_element_can_be_made_again_if_no_hook_prevents_it(name: str) -> None:
    tree = TREES[name](source(2))
    if "iter map" in name:
        assert tree.can_restore_sample() == ("replayed" not in name and "savable" not in name)
    if tree.can_restore_sample():
        for element in take(tree, 30):
            assert tree.restore_sample(json.loads(json.dumps(element["__restore_key__"]))) == element


@pytest.mark.parametrize("streams", [1, 3, 4])
@pytest.mark.parametrize("repeats", [2, 0.5, 1.3, 2.75])
def test_repeats_are_exact_over_all_streams_and_fair_over_the_epochs(streams: int, repeats: float) -> None:
    dataset = RepeatDataset(source(streams, total=20), repeats=repeats)
    assert len(dataset) == round(20 * repeats)
    live = RankIterator(dataset)
    epochs = [[sample["number"] for sample in live] for _ in range(4)]
    assert len(epochs[0]) == len(dataset)
    counts = Counter(number for epoch in epochs for number in epoch)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == round(4 * 20 * repeats)


def test_repeating_nothing_is_an_error_and_not_an_endless_loop() -> None:
    with pytest.raises(DatasetError, match=r"(?s)nothing to repeat in stream 1.*fewer samples than"):
        take(RepeatDataset(source(2, total=1)), 10)
    assert take(RepeatDataset(source(1, total=0), repeats=3), 10) == []
    for repeats in (0, -1, float("nan"), float("inf"), "2"):
        with pytest.raises(ConfigError, match="repeats="):
            RepeatDataset(source(1), repeats=repeats)  # type: ignore[arg-type]


def test_a_filter_skips_silently() -> None:
    live = RankIterator(FilterDataset(source(1), filter_fn=not_by_three))
    assert [sample["number"] for sample in live] == [n for n in range(23) if n % 3 and n != 5]
    counts = live.metrics.snapshot()["counts"]
    skipped = 8
    assert counts == {
        "samples.failed": 1,
        "failed.not_by_three": 1,
        "samples.skipped": skipped,
        "skipped.not_by_three": skipped,
    }


@stateless(restore_seeds=True)
def lucky(element: Any) -> bool:
    return random.random() < 0.5


@stateless(restore_seeds=True)
def with_luck(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "luck": random.random()}


def some_with_luck(elements: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (with_luck(element) for element in elements)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_a_filter_draws_other_numbers_for_each_element_of_each_stream(streams: int) -> None:
    kept = [element["number"] for element in take(FilterDataset(Counting(120, config(streams)), filter_fn=lucky), 120)]
    assert 30 < len(kept) < 90
    turns = [{number // streams for number in kept if number % streams == stream} for stream in range(streams)]
    assert all(turns[0] != other for other in turns[1:])


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("kind", ["map", "iter map"])
def test_functions_draw_other_numbers_for_each_element_of_each_stream(kind: str, streams: int) -> None:
    numbers = Counting(30, config(streams))
    mapped = MapDataset(numbers, with_luck) if kind == "map" else IterMapDataset(numbers, some_with_luck)
    assert len({element["luck"] for element in take(mapped, 30)}) == 30


def test_an_iter_map_function_sees_the_epoch_and_a_failure_loses_the_elements_it_held() -> None:
    live = RankIterator(IterMapDataset(source(1, total=12), two_as_one))
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (9, 10), (11, None)]
    for _ in range(2):
        assert [(sample["number"], sample["other"]) for sample in live] == pairs
    assert live.metrics.snapshot()["failures"][0]["key"] == "sample8"


@given(size=st.integers(1, 12), share=st.floats(0, 1), total=st.integers(0, 70), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_buffer_holds_what_its_order_says(size: int, share: float, total: int, seed: int) -> None:
    first = 1 + int(share * (size - 1))
    order = BufferOrder(size, first, seed)
    held, read = list(range(first)), first
    for draw in range(total):
        assert sorted(set(held)) == sorted(held)
        assert order.contents(draw).tolist() == held
        assert order.num_read(draw) == read
        assert order.oldest(draw) <= min(held)
        assert read - order.oldest(draw) <= 3 * size
        assert order.is_oldest(order.oldest(draw))
        held[order.slot(draw)] = read
        read += 1
        if draw < order.growth:
            held.append(read)
            read += 1


def test_a_shuffle_yields_every_element_once_in_another_order_each_epoch_and_stream() -> None:
    live = RankIterator(ShuffleBufferDataset(source(1, total=400), 32))
    first, second = ([sample["number"] for sample in live] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(400))
    assert first != second
    assert first[0] < 32
    moved = [abs(number - place) for place, number in enumerate(first)]
    assert max(moved) < 64
    assert sum(moved) / len(moved) > 8
    two = numbers(ShuffleBufferDataset(source(2, total=400), 32))
    assert [n // 2 for n in two[::2]] != [n // 2 for n in two[1::2]]


def test_the_first_element_waits_for_as_many_as_the_option_says() -> None:
    for first, made in ((None, 51), (1, 3), (10, 12)):
        counting = source(1, total=200)
        next(RankIterator(ShuffleBufferDataset(counting, 50, first=first)))
        assert len(counting.made) == made
    for size, first in ((0, None), (3, 0), (3, 4)):
        with pytest.raises(ConfigError, match=r"must be a whole number|is invalid"):
            ShuffleBufferDataset(source(1), size, first=first)


def test_virtual_epochs_over_finite_data_start_again() -> None:
    live = RankIterator(BatchDataset(EpochizeDataset(source(1, total=10), 4), 4, as_batch))
    got = [[batch["numbers"] for batch in live] for _ in range(6)]
    assert got == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]], [[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]


@pytest.mark.parametrize("streams", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [EpochizeDataset, LimitDataset])
def test_a_limit_yields_the_same_elements_inside_and_outermost(kind: Any, streams: int) -> None:
    outermost = RankIterator(kind(source(streams, total=60), 10))
    inside = RankIterator(FilterDataset(kind(source(streams, total=60), 10), filter_fn=bool))
    for _ in range(4):
        assert sorted(s["number"] for s in outermost) == sorted(s["number"] for s in inside)
    dataset = kind(source(streams, total=60), 10)
    assert sum(map(dataset.len_stream, range(streams))) == 10


@pytest.mark.parametrize("streams", [1, 3])
def test_a_limit_of_0_yields_nothing(streams: int) -> None:
    empty = LimitDataset(source(streams), 0)
    assert (empty.len_rank(), sum(map(empty.len_stream, range(streams)))) == (0, 0)
    for tree in (empty, FilterDataset(empty, filter_fn=bool)):
        live = RankIterator(tree)
        assert [list(live) for _ in range(3)] == [[], [], []]
    assert sorted(numbers(ConcatDataset(empty, source(streams, total=4)))) == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [-1, 1.5, "5", True, float("nan")])
def test_a_limit_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^length=.* is invalid: it must be a whole number of at least 0; "):
        LimitDataset(source(1), value)


def test_garbage_is_collected_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    take(GcDataset(source(1), every_n_iter=5), 100)
    assert calls == []
    take(GcDataset(source(1), every_n_iter=5, in_trainer=True), 100)
    assert calls == ["freeze", *["collect"] * 4]
    with pytest.raises(ConfigError, match="every_n_iter=0"):
        GcDataset(source(1), every_n_iter=0)


def test_the_log_names_the_mode_and_asks_for_the_keys(tmp_path: Path) -> None:
    job = config(1, worker_log_level=1, worker_debug_path=str(tmp_path / "log"))
    take(LogSampleDataset(Counting(3, job), "val", get_keys_fn=lambda sample: sample["number"]), 10)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["keys"] for line in lines if line.get("mode") == "val"] == [0, 1, 2]


@pytest.mark.parametrize("given", [5, [1, 2], range(3), None])
def test_a_wrapper_needs_a_dataset(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"MapDataset was given .*, which is not a dataset of energon_dali"):
        MapDataset(given, str)


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, float("nan")])
def test_sizes_are_whole_numbers(value: Any) -> None:
    makers: list[Any] = [
        lambda: BatchDataset(source(1), value, list),
        lambda: GroupBatchDataset(source(1), value, lambda sample: (0, None), list),
        lambda: EpochizeDataset(source(1), value),
        lambda: ShuffleBufferDataset(source(1), value),
        lambda: ShuffleBufferDataset(source(1), 5, first=value),
        lambda: PackingDataset(source(1), value, list, list),
        lambda: PackingDataset(source(1), 5, list, list, first=value),
        lambda: GcDataset(source(1), every_n_iter=value),
    ]
    for make in makers:
        with pytest.raises(ConfigError, match=r"is invalid: it must be a whole number of at least 1; "):
            make()


@pytest.mark.parametrize("value", [5, "x", [], None])
def test_hooks_can_be_called(value: Any) -> None:
    makers: dict[str, Any] = {
        "map_fn": lambda: MapDataset(source(1), value),
        "filter_fn": lambda: FilterDataset(source(1), filter_fn=value),
        "iter_map_fn": lambda: IterMapDataset(source(1), value),
        "batcher": lambda: BatchDataset(source(1), 2, value),
        "sample_group_key": lambda: GroupBatchDataset(source(1), 2, value, list),
        "pre_packer": lambda: PackingDataset(source(1), 2, value, list),
        "final_packer": lambda: PackingDataset(source(1), 2, list, value),
    }
    for name, make in makers.items():
        with pytest.raises(ConfigError, match=f"^{name}=.* is not callable: give a function"):
            make()


def test_an_iter_map_function_that_skips_before_it_takes_an_element_is_an_error() -> None:
    def skip(elements: Any) -> Any:
        raise SkipSample

    with pytest.raises(FatalSampleError, match="skip raised SkipSample before it took an element"):
        take(IterMapDataset(source(1), skip), 1)
