"""The arguments and states that loaders refuse, with what is wrong and what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali import (
    BlendDataset,
    MapDataset,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.errors import ConfigError, StateError
from tests.loader.dataset_folder import prepare, write_shards


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"txt": b"text", "json": b"{}"} for number in range(12)}
    return prepare(write_shards(tmp_path_factory.mktemp("arguments"), samples), {"text": "txt"}, "TextSample")


def config(**options: Any) -> WorkerConfig:
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0, "num_streams": 2, **options})


def train(folder: Any, **options: Any) -> Any:
    return get_train_dataset(folder, **{"batch_size": 2, "worker_config": config(), "task_encoder": Bytes(), **options})


def val(folder: Any, **options: Any) -> Any:
    return get_val_dataset(folder, **{"batch_size": 2, "worker_config": config(), "task_encoder": Bytes(), **options})


def test_numbers_of_numpy_are_the_same_numbers(folder: Path) -> None:
    loader = get_savable_loader(train(folder, batch_size=np.int64(2), worker_config=config(num_streams=np.int32(2))))
    next(iter(loader))
    restored = get_savable_loader(train(folder))
    restored.restore_state_rank(loader.save_state_rank())
    assert next(iter(restored)).__key__ == next(iter(loader)).__key__


def test_a_loader_wants_a_dataset(folder: Path) -> None:
    loader = get_savable_loader(train(folder))
    for wrong in ([1, 2], loader):
        with pytest.raises(ConfigError, match="is not a dataset of energon_dali"):
            get_savable_loader(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_says_that_it_cannot_be_copied(make_copy: Callable[[Any], Any], folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be copied or pickled.*Copy its dataset"):
        make_copy(get_savable_loader(train(folder)))


@pytest.mark.parametrize(
    "damage",
    [
        {"streams": None},
        {"given": None},
        {"config": None},
        {"config": "zzz"},
        {"streams": {"0": {}, "1": {}}},
        {"num_streams": "2"},
        {"given": {"0": "a"}},
        {"streams": {"0": {"count": "a", "ended": False, "state": {}}}},
    ],
)
def test_a_damaged_state_is_named_so(damage: dict[str, Any], folder: Path) -> None:
    state = {**get_savable_loader(train(folder)).save_state_rank(), **damage}
    for restore in ("restore_state_rank", "restore_state_global", "load_state_dict"):
        with pytest.raises(StateError, match="The state is damaged"):
            getattr(get_savable_loader(train(folder)), restore)(state)
    with pytest.raises(StateError, match=r"not a loader state .int."):
        get_savable_loader(train(folder)).restore_state_global(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("inner", [{}, {"inner": 3}, {"inner": {"inner": []}}, {"given": "a", "ended": []}])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_is_damaged_inside_is_named_so(inner: dict[str, Any], workers: int, folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)

    def loader() -> Any:
        return get_savable_loader(train(folder, worker_config=config), start_method="fork")

    with loader() as good:
        next(iter(good))
        state = good.save_state_rank()
    state["streams"]["0"]["state"] = inner
    with loader() as other:
        other.restore_state_rank(state)
        with pytest.raises(StateError, match="The state of stream 0 is damaged"):
            next(iter(other))


def test_a_state_of_another_tree_says_where_it_differs(folder: Path) -> None:
    state = get_savable_loader(train(folder, batch_size=2)).save_state_rank()
    other = get_savable_loader(MapDataset(train(folder, batch_size=2), list))
    with pytest.raises(StateError, match=r"outermost dataset was BatchDataset, is MapDataset\. Build the loader"):
        other.restore_state_rank(state)
    blends = [get_savable_loader(BlendDataset(*[(train(folder, batch_size=2), 1)] * count)) for count in (2, 3)]
    with pytest.raises(StateError, match=r"was a list of 2 datasets, is a list of 3 datasets; .*weights was \[1\.0, 1"):
        blends[1].restore_state_rank(blends[0].save_state_rank())


@pytest.mark.usefixtures("warm_workers")
def test_threads_that_share_a_loader_take_turns(folder: Path) -> None:
    def run(loader: Any) -> list[str]:
        return [sample.__key__ for sample in islice(loader, 4)]

    with (
        get_savable_loader(val(folder, batch_size=None, worker_config=config(num_workers=1))) as loader,
        ThreadPoolExecutor(3) as threads,
    ):
        found = [key for keys in threads.map(run, [loader] * 3) for key in keys]
    assert sorted(found) == sorted(f"k{number}" for number in range(12))
