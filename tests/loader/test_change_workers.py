"""The number of workers may change while a run goes on: by hand, or by num_workers="auto". No batch changes."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    LayoutError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.loader import auto_workers
from energon_dali.loader.auto_workers import AutoWorkers
from energon_dali.loader.host_memory import MemoryLeft
from energon_dali.loader.statistics import LoaderStatistics
from tests.loader.dataset_folder import captioning_dataset

pytestmark = pytest.mark.usefixtures("warm_workers")

STREAMS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("workers") / "images", 48, 3)


def loader(path: Path, workers: Any, encoder: Any = None, **options: Any) -> Any:
    job = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=STREAMS)
    dataset = get_train_dataset(
        str(path), worker_config=job, batch_size=2, shuffle_buffer_size=10, task_encoder=encoder, **options
    )
    return get_savable_loader(dataset, start_method="fork")


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None


class Dali(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


@pytest.mark.sweep
def test_twenty_changes_in_an_epoch_change_no_batch_and_no_state(data: Path) -> None:
    still = loader(data, 0, Plain(), virtual_epoch_length=100)
    expected, states = [], []
    for batch in still:
        expected.append(batch.__key__)
        states.append(json.loads(json.dumps(still.save_state_rank())))
    found, own_states = [], []
    counts = [1, 2, 4, 8, 0] * 4
    with loader(data, 2, Plain(), virtual_epoch_length=100) as moving:
        for number, batch in enumerate(moving):
            found.append(batch.__key__)
            own_states.append(json.loads(json.dumps(moving.save_state_rank())))
            if number % 5 == 2 and counts:
                moving.change_workers(counts.pop())
                assert json.loads(json.dumps(moving.save_state_rank())) == own_states[-1]
        assert counts == []
        assert moving.worker_config.num_workers == 1
        assert moving.dataset.worker_config.num_workers == 2
    assert found == expected
    assert own_states == states


def test_batches_that_the_rank_decodes_change_neither(data: Path) -> None:
    with loader(data, 0, Dali()) as still:
        expected = [(batch.__key__, batch.image.sum().item()) for batch in islice(still, 12)]
    found = []
    with loader(data, 1, Dali()) as moving:
        for number, batch in enumerate(islice(moving, 12)):
            found.append((batch.__key__, batch.image.sum().item()))
            if number == 4:
                moving.change_workers(2)
    assert found == expected


def test_numbers_that_do_not_fit_are_refused(data: Path) -> None:
    one = loader(data, 0, Plain())
    with pytest.raises(LayoutError, match="num_workers may be 1, 2, 4, 8"):
        one.change_workers(3)
    with pytest.raises(ConfigError, match="num_workers=-1 is negative"):
        one.change_workers(-1)


def test_auto_fixes_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.worker_config.cores_per_rank", lambda: 6)
    config = WorkerConfig(rank=1, world_size=3, num_workers="auto")
    assert (config.layout.num_streams, config.num_workers, config.is_auto) == (24, 4, True)
    assert config.with_workers(2).is_auto
    assert WorkerConfig(rank=0, world_size=2, num_workers="auto", num_streams=6).num_workers == 3
    assert WorkerConfig.default_worker_config("auto").layout.num_streams == 8
    with pytest.raises(ConfigError, match='give an int or "auto"'):
        WorkerConfig(rank=0, world_size=1, num_workers="many")  # type: ignore[arg-type]
    with pytest.raises(LayoutError):
        WorkerConfig(rank=0, world_size=2, num_workers="auto", num_streams=5)


class Trainer:
    """A clock, and batches that take a time that depends on the number of workers.

    Args:
        step_seconds: The trainer's own time per step.
        batch_seconds: Time for a batch, by number of workers.
        busy: Share of their time that workers compute.
    """

    def __init__(self, step_seconds: float, batch_seconds: dict[int, float], busy: float = 0.0) -> None:
        self.now = 0.0
        self.step_seconds = step_seconds
        self.batch_seconds = batch_seconds
        self.busy = busy
        self.stages = {"read": 0.0}
        self.cpu = {"read": 0.0}

    def run(self, auto: AutoWorkers, steps: int) -> None:
        for _ in range(steps):
            auto.decide(self.statistics)
            waited = max(0.0, self.batch_seconds[auto.current] - self.step_seconds)
            seconds = self.step_seconds + waited
            self.now += seconds
            self.stages["read"] += seconds * auto.current
            self.cpu["read"] += seconds * auto.current * self.busy
            auto.note(waited)

    def statistics(self) -> LoaderStatistics:
        return LoaderStatistics(
            batches=1,
            elapsed_seconds=self.now,
            blocked_seconds=self.now,
            first_batch_seconds=0.0,
            stage_seconds=dict(self.stages),
            cpu_seconds=dict(self.cpu),
        )


def moves(step_seconds: float, batch_seconds: dict[int, float], start: int = 1, busy: float = 0.0) -> list[int]:
    trainer = Trainer(step_seconds, batch_seconds, busy)
    auto = AutoWorkers(sorted(batch_seconds), start, lambda: trainer.now)
    trainer.run(auto, 5000)
    assert len(auto.changes) <= auto_workers.MOST_CHANGES
    return [start, *(after for _, after, _ in auto.changes)]


def test_auto_takes_as_many_workers_as_the_trainer_needs() -> None:
    assert moves(0.1, {1: 0.4, 2: 0.2, 4: 0.1, 8: 0.05}) == [1, 2, 4]
    assert moves(0.01, {1: 0.4, 2: 0.2, 4: 0.1, 8: 0.1}) == [1, 2, 4, 8, 4]
    assert moves(0.5, {1: 0.4, 2: 0.2, 4: 0.1, 8: 0.1}, 4) == [4, 2, 1]
    assert moves(0.3, {1: 0.4, 2: 0.2, 4: 0.1}, 4) == [4, 2, 1, 2]
    assert moves(0.3, {1: 0.306, 2: 0.2}) == [1]


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_workers, "cores_per_rank", lambda: 2)
    monkeypatch.setattr(auto_workers, "memory_left", lambda: MemoryLeft(2**34, 2**35))


HALVES = {1: 0.8, 2: 0.4, 4: 0.2, 8: 0.1, 16: 0.05}


@pytest.mark.usefixtures("two_cores")
def test_auto_has_more_workers_than_cores_where_they_sleep() -> None:
    assert moves(0.01, HALVES, busy=0.05) == [1, 2, 4, 8, 16]
    assert moves(0.01, HALVES, busy=0.4) == [1, 2, 4], "8 would need 3.2 cores"
    assert moves(0.01, HALVES, busy=1.0) == [1, 2]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("batch_seconds", "step_seconds", "busy", "reason"),
    [
        (HALVES, 0.01, 1.0, "4 workers would need more than 2 cores: 2 want 2.0. Most of the work"),
        ({1: 0.4, 2: 0.2}, 0.01, 0.0, "2 is the most that there is: give more num_streams. Waiting for storage"),
        ({1: 0.4, 2: 0.4}, 0.01, 0.0, "2 were tried: 2 workers deliver no more: 2.5 after 2.5 batches/s"),
        ({1: 0.4, 2: 0.2}, 0.6, 0.0, "the trainer never waits"),
        ({1: 0.4, 2: 0.2}, 0.39, 0.0, "the trainer waits 3% of the time"),
    ],
)
def test_auto_says_why_the_number_stays(
    batch_seconds: dict[int, float], step_seconds: float, busy: float, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(step_seconds, batch_seconds, busy)
    auto = AutoWorkers(sorted(batch_seconds), 1, lambda: trainer.now)
    with caplog.at_level(logging.INFO, "energon_dali.loader"):
        trainer.run(auto, 2000)
    assert reason in auto.reason
    assert caplog.text.count(f"it stays at {auto.current}, because") == 1, "said once"
    assert reason in caplog.text


@pytest.mark.usefixtures("two_cores")
def test_auto_starts_no_worker_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_workers, "memory_left", lambda: MemoryLeft(2**28, 2**35))
    trainer = Trainer(0.01, HALVES)
    auto = AutoWorkers(sorted(HALVES), 1, lambda: trainer.now)
    trainer.run(auto, 500)
    assert auto.current == 1
    assert "only 0.2 GiB of memory are left for more workers" in auto.reason


def test_auto_changes_workers_during_a_run_and_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto_workers, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(auto_workers, "WINDOW_BATCHES", 3)
    monkeypatch.setattr(auto_workers, "_WAITS", -1.0)  # whatever it waits, it is too much
    monkeypatch.setattr(auto_workers, "_GAIN", 0.0)
    monkeypatch.setattr(auto_workers, "worker_counts", lambda streams: [1, 2, 4])
    monkeypatch.setattr(auto_workers, "cores_per_rank", lambda: 64)  # neither cores nor memory are ever short
    monkeypatch.setattr(auto_workers, "memory_left", lambda: MemoryLeft(2**34, 2**35))
    monkeypatch.setattr("energon_dali.worker_config.cores_per_rank", lambda: 1)
    still = loader(data, 0, Plain())
    expected = [batch.__key__ for batch in islice(still, 40)]
    with loader(data, "auto", Plain()) as one, caplog.at_level(logging.INFO, "energon_dali.loader"):
        assert one.worker_config.num_workers == 1
        assert [batch.__key__ for batch in islice(one, 40)] == expected
        assert one.worker_config.num_workers == 4
        assert one.save_state_rank()["streams"] == still.save_state_rank()["streams"]
    assert 'num_workers="auto": 2 workers in place of 1, because the trainer waits' in caplog.text
