"""A state continues with batches of another size, if the order of samples does not depend on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    BlendDataset,
    DefaultTaskEncoder,
    StateError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from tests.loader.dataset_folder import captioning_dataset

STREAMS = 2


class Keys(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    @stateless
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {"keys": [sample.__key__ for sample in samples], "number": self.current_batch_index}

    @stateless
    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Grouping(Keys):
    def batch_group_criterion(self, sample: Any) -> Any:
        return int(sample.__key__.removeprefix("k")) % 3, None


class Halving(Keys):
    def encode_batch(self, batch: dict[str, Any]) -> Any:
        yield batch
        yield batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=50)


def job(workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=STREAMS, seed_offset=5)


def train(folder: Path, size: int, encoder: type[Any] = Keys, workers: int = 0, **options: Any) -> Any:
    kwargs = {"shuffle_buffer_size": 20, "batch_size": size, **options}
    return get_train_dataset(folder, worker_config=job(workers), task_encoder=encoder(), **kwargs)


def states_of(dataset: Any, count: int) -> list[Any]:
    """Returns the states before each of the first batches, after a round trip through JSON."""
    loader = get_savable_loader(dataset)
    states, batches = [], iter(loader)
    for _ in range(count):
        states.append(json.loads(json.dumps(loader.save_state_rank())))
        next(batches)
    return states


def continued(dataset: Any, state: Any, count: int) -> list[dict[str, Any]]:
    with get_savable_loader(dataset, start_method="fork") as loader:
        loader.restore_state_rank(state)
        return list(islice(loader, count))


@pytest.mark.parametrize(("old", "new"), [(4, 2), (4, 1), (6, 3), (2, 4), (4, 6)])
@pytest.mark.parametrize("workers", [0, 2])
def test_after_whole_rounds_the_run_is_that_of_the_other_size(folder: Path, old: int, new: int, workers: int) -> None:
    rounds = 6
    states = states_of(train(folder, old), rounds * STREAMS + 1)
    expected = list(islice(get_savable_loader(train(folder, new)), 60))
    for place in (0, rounds * STREAMS):
        skipped = place * old // new
        count = 20 if workers else 60 - skipped
        count = min(count, 60 - skipped)
        assert continued(train(folder, new, workers=workers), states[place], count) == expected[skipped:][:count]


def test_in_the_middle_of_a_round_no_sample_is_lost_or_comes_twice(folder: Path) -> None:
    states = states_of(train(folder, 4), 6)
    whole = [key for batch in islice(get_savable_loader(train(folder, 4)), 12) for key in batch["keys"]]
    for place, state in enumerate(states):
        rest = [key for batch in continued(train(folder, 2), state, 2 * (12 - place)) for key in batch["keys"]]
        assert sorted(rest) == sorted(whole[4 * place :])


@pytest.mark.parametrize("options", [{"virtual_epoch_length": 6}, {"limit": 6}])
def test_the_rest_of_an_epoch_has_as_many_samples(folder: Path, options: dict[str, int]) -> None:
    def build(size: int) -> Any:
        lengths = {name: length * 4 // size for name, length in options.items()}
        if "limit" in options:
            return get_val_dataset(
                folder, split_part="train", batch_size=size, worker_config=job(), task_encoder=Keys(), **lengths
            )
        return train(folder, size, **lengths)

    state = states_of(build(4), 5)[4]
    whole = [batch["keys"] for batch in get_savable_loader(build(4))]
    with get_savable_loader(build(2)) as loader:
        loader.restore_state_rank(state)
        rest = [batch["keys"] for batch in loader]
    assert len(rest) == 4
    assert sorted(chain(*rest)) == sorted(chain(*whole[4:]))


REFUSED: dict[str, tuple[Callable[[Path, int], Any], str]] = {
    "groups": (lambda folder, size: train(folder, size, Grouping), "some of them wait"),
    "a generator": (lambda folder, size: train(folder, size, Halving), "encode_batch is a generator function"),
    "a blend of batches": (
        lambda folder, size: BlendDataset((train(folder, size), 1), (train(folder, size), 1)),
        "only batches that the loader delivers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_where_the_order_depends_on_the_size(folder: Path, name: str) -> None:
    build, why = REFUSED[name]
    state = states_of(build(folder, 4), 3)[2]
    with pytest.raises(StateError, match=why):
        continued(build(folder, 2), state, 1)


def test_a_position_inside_a_larger_batch_is_refused(folder: Path) -> None:
    states = states_of(train(folder, 2), 4)
    with pytest.raises(StateError, match="after 1 batches of 2 samples in a stream, which is not a whole number of"):
        continued(train(folder, 4), states[3], 1)


def test_batches_do_not_become_samples(folder: Path) -> None:
    state = states_of(train(folder, 2), 1)[0]
    with pytest.raises(StateError, match="is SourceDataset"):
        continued(train(folder, None), state, 1)  # type: ignore[arg-type]
