"""The times of the last steps, next to what was planned for each rank."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali import (
    Balance,
    DefaultTaskEncoder,
    FittedCost,
    TransformerCost,
    WorkerConfig,
    fit_cost,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.errors import ConfigError
from energon_dali.loader.step_times import StepClock, StepTimes
from energon_dali.plan.costs import terms_of
from energon_dali.task_encoder.planned_packs import PlannedPacks
from tests.loader.dataset_folder import prepare, write_shards

SAMPLES = 300
LENGTHS = np.array([random.Random(number).choice((10, 20, 200, 900)) for number in range(SAMPLES)])
PATCHES = np.array([random.Random(-number - 1).choice((0, 0, 0, 400)) for number in range(SAMPLES)])
COST = TransformerCost(64, 2, vision_hidden_size=64, vision_layers=2)


class Values:
    identity = "test"
    names = ("text_tokens", "vision_tokens", "vision_patches", "vision_squares")
    num_samples = SAMPLES

    def take(self, name: str, numbers: Any) -> Any:
        return {"tokens": LENGTHS, "vision_patches": PATCHES, "vision_squares": PATCHES**2}[name][numbers]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("times") / "texts"
    samples = {f"{number:03d}": {"txt": f"text {number}".encode()} for number in range(SAMPLES)}
    return prepare(write_shards(root, samples, 4), {"text": "txt"}, "TextSample")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.assembly.measured_plan.open_measures", lambda *_, **__: Values())


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].__key__ = " ".join(sample.__key__ for sample in samples)
        return samples[0]


def loader_of(data: Path, rank: int = 0, world_size: int = 3, num_workers: int = 0, **options: Any) -> Any:
    given = {"global_batch_size": 24, "balance": Balance(COST), **options}
    return get_savable_loader(
        get_train_dataset(
            data,
            worker_config=WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers),
            batch_size=2,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=Texts(),
            **given,
        )
    )


def delivered_terms(batch: Any) -> Any:
    numbers = [int(key) for keys in batch.__key__ for key in keys.split()]
    patches = PATCHES[numbers]
    values = {"tokens": LENGTHS[numbers], "vision_patches": patches, "vision_squares": patches**2}
    return terms_of(values).sum(0)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"balance": Balance(COST, per="micro_batch")},
        {"packs": PlannedPacks(1000, window=50, real_length=None)},
        {"packs": PlannedPacks(1000, window=50, real_length=None), "balance": None},
    ],
    ids=["step", "micro_batch", "packs", "packs alone"],
)
def test_what_was_planned_is_what_is_delivered(data: Path, options: dict[str, Any], num_workers: int) -> None:
    for rank in range(3):
        with loader_of(data, rank, num_workers=num_workers, **options) as loader:
            found: dict[int, list[Any]] = {}
            for batch in loader:
                found.setdefault(batch.step, []).append(delivered_terms(batch))
                if batch.step == 5:
                    break
            times = loader.step_times(last=3)
        assert times.steps.tolist() == [2, 3, 4]  # the last one is not over
        assert (times.seconds > 0).all()
        for number, sums in zip(times.steps.tolist(), times.sums, strict=True):
            own = sums[:, rank]
            assert own.sum(0).tolist() == np.sum(found[number], axis=0).tolist()
            if len(own) > 1:
                assert own.tolist() == np.array(found[number]).tolist()
        assert (times.costs is None) == (options.get("balance", 0) is None)


@pytest.mark.parametrize("packs", [None, PlannedPacks(1000, window=50, real_length=None)])
def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(data: Path, packs: Any) -> None:
    balance = Balance(COST, per="micro_batch")
    with loader_of(data, world_size=1, repeat=False, balance=balance, packs=packs) as loader:
        micro_batches = [batch.micro_batch for batch in loader]
        times = loader.step_times()
    last = micro_batches[-1] + 1
    assert last < 12
    assert times.sums[-2].any(axis=(1, 2)).all()
    assert times.sums[-1].any(axis=(1, 2)).tolist() == [True] * last + [False] * (12 - last)
    assert 0 <= times.planned_waiting_share() < 1


def test_planned_seconds_are_in_the_unit_of_the_measured_ones(data: Path) -> None:
    with loader_of(data) as loader:
        for batch in loader:
            if batch.step == 8:
                break
        times = loader.step_times()
    planned = times.planned_seconds()
    assert planned.shape == (8, 3)
    assert planned.max(1).sum() <= times.seconds.sum() * (1 + 1e-9)  # each network has its own slowest rank
    assert 0 < times.planned_waiting_share() < 1
    lines = str(times).splitlines()
    assert lines[0].split() == ["step", "measured", "planned:", "this", "rank", "mean", "slowest"]
    assert len(lines) == 10
    assert lines[-1].startswith("ranks wait ")


def test_times_are_what_a_fit_takes(data: Path) -> None:
    with loader_of(data, packs=PlannedPacks(1000, window=50, real_length=None), balance=None) as loader:
        for batch in loader:
            if batch.step == 80:
                break
        times = loader.step_times(last=80)
    seconds = (times.sums[..., :3] @ [0, 2e-4, 0]).max(2).sum(1) + (times.sums[..., 3:] @ [1e-7, 1e-4, 0]).max(2).sum(1)
    with pytest.warns(UserWarning, match="always change together"):  # images have one size
        fitted = fit_cost(times.sums, seconds)
    assert isinstance(fitted, FittedCost)
    assert fitted.language[0] / fitted.language[1] == pytest.approx(1e-3, rel=0.1)


def test_no_times_before_a_step_is_over(data: Path) -> None:
    with loader_of(data) as loader:
        assert len(loader.step_times().steps) == 0
        next(iter(loader))
        times = loader.step_times()
    assert times.planned_seconds().shape == (0, 3)
    assert times.planned_waiting_share() == 0.0


def test_a_restore_forgets_the_times(data: Path) -> None:
    with loader_of(data) as loader:
        for batch in loader:
            if batch.step == 3 and batch.is_last_of_step:
                break
        state = loader.save_state_rank()
    with loader_of(data, world_size=2, global_batch_size=16) as loader:
        loader.restore_state_rank(state)
        for batch in loader:
            if batch.step == 6:
                break
        assert loader.step_times().steps.tolist() == [4, 5]


def position(step: int, micro_batch: int) -> dict[str, Any]:
    return {"cursor": {"step": step, "micro_batch": micro_batch}}


def test_the_time_of_a_step_is_without_waits_for_batches() -> None:
    clock = StepClock()
    clock.note(position(0, 1), 0.0, 1.0)  # the beginning of this step was not seen
    clock.note(position(1, 0), 2.0, 10.0)
    clock.note(position(1, 1), 13.0, 13.5)
    clock.note(position(2, 0), 20.0, 21.0)
    clock.end(24.0)
    clock.note(position(3, 0), 30.0, 31.0)
    assert [(seconds, blocked) for _, seconds, blocked in clock._done] == [(9.5, 0.5), (3.0, 0.0)]
    clock.clear()
    clock.end(40.0)
    assert not clock._done


def test_planned_seconds_of_two_steps() -> None:
    costs = np.array([[[[1, 2], [3, 0]]], [[[0, 0], [2, 2]]]])
    times = StepTimes(0, np.array([4, 5]), np.array([6.0, 3.0]), np.zeros(2), np.zeros((2, 1, 2, 6), np.int64), costs)
    assert times.planned_seconds().tolist() == [[3.0, 3.0], [0.0, 4.0]]  # 9 seconds for costs of 3 + 2 + 2 + 2
    assert times.planned_waiting_share() == pytest.approx(1 - np.mean([3 / 5, 1 / 2]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"balance": None}, "this job uses none. Give get_train_dataset a balance, or packs"),
        ({"balance": None, "global_batch_size": None}, "this loader has none"),
    ],
)
def test_jobs_without_plans_of_costs(data: Path, options: dict[str, Any], said: str) -> None:
    with loader_of(data, **options) as loader, pytest.raises(ConfigError, match=said):
        loader.step_times()


def test_invalid_numbers_of_steps(data: Path) -> None:
    with loader_of(data) as loader, pytest.raises(ConfigError, match="last=0 is invalid"):
        loader.step_times(last=0)
    packs = PlannedPacks(1000)
    with loader_of(data, packs=packs, balance=None) as loader, pytest.raises(ConfigError, match="job has no balance"):
        loader.step_times().planned_seconds()
