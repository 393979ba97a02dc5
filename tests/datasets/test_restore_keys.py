"""Restore keys reach every stage, whatever type of element the hooks return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import ConfigError, DatasetError, FatalSampleError, SkipSample, StateError
from tests.datasets.oracle import Counting, check_resume, config, silent, take


class Encoded(NamedTuple):
    number: int


@dataclass(frozen=True)
class Frozen:
    __restore_key__: tuple[Any, ...]
    number: int


ENCODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "named tuple": lambda sample: Encoded(sample["number"]),
    "plain tuple": lambda sample: (sample["number"],),
    "dict without a key": lambda sample: {"number": sample["number"]},
    "frozen dataclass": lambda sample: Frozen((), sample["number"]),
}


def number_of(sample: Any) -> int:
    if isinstance(sample, dict):
        return int(sample["number"])
    return int(sample[0] if isinstance(sample, tuple) else sample.number)


def by_parity(sample: Any) -> tuple[int, int | None]:
    return number_of(sample) % 2, 3


def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[start : start + 2] for start in range(0, len(samples), 2)]


def numbers(samples: list[Any]) -> list[int]:
    return [number_of(sample) for sample in samples]


def bordered(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    return WorkerBorder(dataset, block_size=4)


TREES: dict[str, Callable[[SavableDataset[Any]], SavableDataset[Any]]] = {
    "group": lambda s: GroupBatchDataset(s, None, by_parity, numbers),
    "packing": lambda s: PackingDataset(s, 6, pairs, numbers),
    "packing after the border": lambda s: PackingDataset(bordered(s), 6, pairs, numbers),
    "packing of packs": lambda s: PackingDataset(PackingDataset(s, 4, pairs, lambda p: p[0]), 4, pairs, numbers),
}


def source(**options: Any) -> Counting:
    return Counting(23, config(2, global_error_handler=silent, **options))


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("tree", TREES)
def test_buffers_of_elements_without_a_field_for_a_key_resume(tree: str, encoder: str) -> None:
    check_resume(lambda: TREES[tree](MapDataset(source(), ENCODERS[encoder])), count=100, epochs=2)


def test_a_dict_of_the_user_gets_no_new_field() -> None:
    def batch(samples: list[Any]) -> dict[str, Any]:
        return {"numbers": numbers(samples)}

    (found,) = take(BatchDataset(MapDataset(source(), ENCODERS["dict without a key"]), 3, batch), 1)
    assert found == {"numbers": [0, 2, 4]}


def test_a_frozen_dataclass_carries_its_key() -> None:
    (found,) = take(MapDataset(source(), ENCODERS["frozen dataclass"]), 1)
    assert found.__restore_key__ == ("MapDataset", 0, "Counting", 0)


@pytest.mark.parametrize("key", [None, 3, (), ("MapDataset",), ("MapDataset", "a"), ("MapDataset", 0, "Counting")])
def test_a_damaged_key_is_refused(key: Any) -> None:
    with pytest.raises(StateError, match="was not made by"):
        MapDataset(source(), ENCODERS["plain tuple"]).restore_sample(key)


class Vanishing(Counting):
    """Cannot make some numbers a second time."""

    gone: tuple[int, ...] = ()

    def restore_sample(self, restore_key: Any) -> Any:
        if restore_key[1] in self.gone:
            raise DatasetError(f"number {restore_key[1]} is gone")
        return super().restore_sample(restore_key)


@pytest.mark.parametrize(("tree", "gone"), [("group", (1, 3)), ("packing", (4, 5))])
def test_elements_lost_from_a_buffer_go_to_the_restore_error_handler(tree: str, gone: tuple[int, ...]) -> None:
    def make(**options: Any) -> RankIterator[Any]:
        inner = Vanishing(23, config(1, global_error_handler=silent, **options))
        inner.gone = gone
        return RankIterator(TREES[tree](MapDataset(inner, ENCODERS["plain tuple"])))

    live = make()
    first = next(live)
    strict = make()
    strict.load_state_dict(live.state_dict())
    with pytest.raises(DatasetError, match="is gone"):
        next(strict)
    told: list[str] = []
    lenient = make(restore_error_handler=lambda error, sample, sources: told.append(str(error)))
    lenient.load_state_dict(live.state_dict())
    rest = [number for batch in lenient for number in batch]
    assert sorted([*first, *rest]) == sorted(set(range(23)) - set(gone))
    assert told == [f"number {number} is gone" for number in gone]


@pytest.mark.parametrize("tree", ["group", "packing"])
def test_a_sample_that_is_skipped_only_by_a_restore_does_not_count_as_skipped(tree: str) -> None:
    seen: set[int] = set()

    def once(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["number"] in seen:
            raise SkipSample
        seen.add(sample["number"])
        return sample

    def make() -> RankIterator[Any]:
        numbers = Counting(23, config(1, global_error_handler=silent))
        return RankIterator(TREES[tree](MapDataset(MapDataset(numbers, once), ENCODERS["plain tuple"])))

    live, restored = make(), make()
    next(live)
    restored.load_state_dict(live.state_dict())
    with pytest.raises(StateError, match=r"raised SkipSample when the element of .* was made again"):
        next(restored)


@pytest.mark.parametrize(
    ("packer", "what"),
    [(lambda samples: None, "NoneType"), (lambda samples: samples, "dict as a group"), (lambda samples: [[0]], "int")],
)
def test_a_packer_that_returns_something_else_is_told_what_to_return(packer: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"select_samples_to_pack returned {what}.*list of groups"):
        take(PackingDataset(source(), 6, packer, numbers), 1)


def test_a_group_key_that_cannot_be_hashed_fails_with_its_sample() -> None:
    dataset = GroupBatchDataset(source(), 3, _unhashable, numbers, failure_tolerance=2)
    with pytest.raises(FatalSampleError, match=r"batch_group_criterion failed 2 times.*'sample2'.*unhashable"):
        take(dataset, 1)


def _unhashable(sample: Any) -> Any:
    return [1], None
