"""A wait counts while it lasts, and says what it is for."""

from __future__ import annotations

import io
import itertools
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from energon_dali import DefaultTaskEncoder, LoaderPanel, WorkerConfig, get_loader, get_train_dataset
from energon_dali.datasets.metrics import Metrics, WorkReport
from energon_dali.integrations import LoaderScalars
from energon_dali.loader.statistics import LoaderStatistics
from energon_dali.loader.waiting import describe_wait
from energon_dali.loader.watchdog import TrainerClock
from tests.datasets.test_stage_clock import SetClock
from tests.loader.dataset_folder import captioning_dataset
from tests.running_time import wait_until

# --- by a clock that the tests set ----------------------------------------------------------------------------------


def statistics(clock: TrainerClock) -> LoaderStatistics:
    return LoaderStatistics(**clock.times())


def test_a_wait_counts_while_it_lasts() -> None:
    now = SetClock()
    clock = TrainerClock(now)
    wait = clock.start()
    now.seconds += 3
    first = statistics(clock)
    assert (first.starting_seconds, first.first_batch_seconds, first.waiting_seconds) == (3, None, 3)
    clock.stop(wait)
    now.seconds += 1
    before = statistics(clock)
    assert (before.blocked_seconds, before.waiting_seconds, before.first_batch_seconds) == (0, 0, 3)
    clock.start()
    for second in range(1, 15):
        now.seconds += 1
        found = statistics(clock)
        assert found.waiting_seconds == found.blocked_seconds == second
        assert found.since(before).blocked_share == 1
        before = found
    assert found.blocked_share == pytest.approx(14 / 15)


def test_threads_that_wait_at_the_same_time_block_the_trainer_once() -> None:
    now = SetClock()
    clock = TrainerClock(now)
    clock.stop(clock.start())
    first, second = clock.start(), clock.start()
    now.seconds += 4
    clock.stop(first)
    now.seconds += 2
    assert (statistics(clock).blocked_seconds, statistics(clock).blocked_share) == (6, 1)
    clock.stop_without_batch(second, "the epoch is over")
    now.seconds += 6
    assert statistics(clock).blocked_share == 0.5


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_between_0_and_1_in_every_window(seed: int) -> None:
    draw, now = random.Random(seed), SetClock()
    clock = TrainerClock(now)
    waits: list[float] = []
    snapshots = [statistics(clock)]
    for _ in range(200):
        action = draw.random()
        if waits and action < 0.5:
            end = clock.stop if draw.random() < 0.9 else clock.stop_without_batch
            end(waits.pop(draw.randrange(len(waits))), "the epoch is over")  # type: ignore[arg-type, operator]
        elif len(waits) < 3:
            waits.append(clock.start())
        now.seconds += draw.choice([0.0, 0.001, 1.0, 20.0]) * draw.random()
        if draw.random() < 0.5:
            snapshots.append(statistics(clock))
    for later in snapshots:
        assert 0 <= later.blocked_share <= 1
    for _ in range(300):
        first, last = sorted(draw.sample(range(len(snapshots)), 2))
        between = snapshots[last].since(snapshots[first])
        assert 0 <= between.blocked_share <= 1
        assert 0 <= between.blocked_seconds <= between.elapsed_seconds + 1e-9
        assert between.batches_per_second >= 0


# --- in words -------------------------------------------------------------------------------------------------------


@dataclass
class Reports:
    """What other processes reported, some seconds ago."""

    rows: dict[str, tuple[str, str, float]]

    def read_all(self) -> list[WorkReport]:
        now = time.perf_counter()
        return [
            WorkReport(name, now - age, stage, now - 20, subject, {}, {}, 0.0, [])
            for name, (stage, subject, age) in self.rows.items()
        ]


@pytest.mark.parametrize(
    ("own", "others", "text"),
    [
        (("", ""), {}, "the loader is starting"),
        (("encode_batch", "a/k1"), {}, "the rank is in encode_batch of a/k1"),
        (("wait for decode", ""), {}, "the rank waits for the decoder"),
        (("wait for reader", ""), {}, "the rank waits for the rank that reads its batches"),
        (("wait for workers", "1"), {}, "worker 1 is starting"),
        (("wait for workers", "1"), {"worker 1": ("start", "", 9.0)}, "worker 1 is starting"),
        (
            ("wait for workers", "1"),
            {"worker 0": ("read", "", 0), "worker 1": ("encode_sample", "captions/000123", 0)},
            "worker 1 is in encode_sample of captions/000123",
        ),
        (
            ("wait for workers", "0"),
            {"worker 0": ("read", "captions/shard_000.tar", 0)},
            "worker 0 waits for storage (captions/shard_000.tar)",
        ),
        (("wait for workers", "0"), {"worker 0": ("decode", "captions/k1", 0)}, "worker 0 decodes captions/k1"),
        (("wait for workers", "0"), {"worker 0": ("load", "", 0)}, "worker 0 is in load"),
        (
            ("wait for workers", "0"),
            {"worker 0": ("encode_sample", "a/k1", 12.2)},
            "worker 0 has not reported for 12 s: a call holds the interpreter lock; its last report was that it is in "
            "encode_sample of a/k1",
        ),
        (
            ("", ""),
            {"decode process": ("wait for workers", "0", 0), "worker 0": ("read", "a", 0)},
            "worker 0 waits for storage (a)",
        ),
        (("", ""), {"decode process": ("batch", "a/k1", 0)}, "the decode process is in batch of a/k1"),
        (("", ""), {"decode process": ("", "", 0)}, "the decode process begins to work"),
        (("wait for workers", "1"), {"worker 1": ("", "", 0)}, "worker 1 begins to work"),
    ],
)
def test_what_is_waited_for_is_said_in_words(
    own: tuple[str, str], others: dict[str, tuple[str, str, float]], text: str
) -> None:
    metrics = Metrics()
    metrics.read_others(Reports(others))
    if own[0]:
        metrics.clock(own[0]).begin(own[1])
    assert describe_wait(metrics) == text


# --- while a hook lasts ---------------------------------------------------------------------------------------------


class SlowEncoder(DefaultTaskEncoder):
    """Its hook lasts until a file exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def encode_sample(self, sample: Any) -> Any:
        while sample.__key__ == "k0009" and not self.gate.exists():
            time.sleep(0.01)
        return sample


@dataclass
class Stall:
    """A loader whose trainer waits for a hook, and what was seen meanwhile."""

    loader: Any
    before: LoaderStatistics
    """Before it waited."""
    meanwhile: LoaderStatistics
    panel: dict[int, str]
    """The panel by its width."""
    line: str
    page: str
    """The page for Prometheus."""
    scalars: dict[str, float]


@pytest.fixture(scope="module", params=[0, 2])
def stall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stall]:
    folder = tmp_path_factory.mktemp("stalled")
    gate = folder / "gate"
    dataset = get_train_dataset(
        captioning_dataset(folder / "captions"),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=request.param, num_streams=2),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=SlowEncoder(gate),
    )
    with get_loader(dataset, start_method="fork" if request.param else "auto") as loader:
        batches = iter(loader)
        next(batches)
        before = loader.stats()
        scalars = LoaderScalars(loader)
        scalars.read()
        panel = LoaderPanel(loader)
        panel.lines()
        trainer = threading.Thread(target=lambda: list(itertools.islice(batches, 100)))
        trainer.start()
        try:
            assert wait_until(lambda: "k0009" in loader.stats().waiting_for, 20)
            assert wait_until(lambda: loader.stats().stage_seconds["encode_sample"] > 0.6, 20)
            assert wait_until(lambda: loader.stats().waiting_seconds > 1.0, 20)
            widths = {width: drawn(panel, width) for width in (60, 80, 120)}
            yield Stall(loader, before, loader.stats(), widths, panel.lines()[0], exposition(loader), scalars.read())
        finally:
            gate.touch()
            trainer.join()


def drawn(panel: LoaderPanel, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(panel.render())
    return file.getvalue()


def exposition(loader: Any) -> str:
    client = pytest.importorskip("prometheus_client")
    from energon_dali.integrations.prometheus import LoaderCollector

    registry = client.CollectorRegistry()
    registry.register(LoaderCollector(loader))
    return str(client.generate_latest(registry).decode())


def test_statistics_show_the_stall_while_it_lasts(stall: Stall) -> None:
    now = stall.meanwhile
    who = "the rank" if stall.loader.worker_config.num_workers == 0 else "worker "
    assert now.waiting_for.startswith(who)
    assert now.waiting_for.endswith("is in encode_sample of captions/k0009")
    assert now.waiting_seconds > 1
    between = now.since(stall.before)
    assert between.blocked_seconds >= 1
    assert 0.5 < between.blocked_share <= 1
    assert between.stage_seconds["encode_sample"] > 0.6
    assert between.cpu_seconds["encode_sample"] < 0.5 * between.stage_seconds["encode_sample"]
    assert "for a batch: " in str(now)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_shows_the_stall(stall: Stall, width: int) -> None:
    lines = stall.panel[width].splitlines()
    assert {len(line) for line in lines} == {width}
    text = " ".join(" ".join(line.strip("│ ") for line in lines[1:4]).split())
    assert re.match(r"waiting \d+\.\d s for a batch: ", text)
    assert "is in encode_sample of captions/k0009" in text


def test_a_line_of_the_log_shows_the_stall(stall: Stall) -> None:
    assert re.match(r"train, rank 0: waiting \d+\.\d s for a batch: ", stall.line)
    assert "is in encode_sample of captions/k0009" in stall.line
    assert "0.0/s" not in stall.line
    assert "blocked 0%" not in stall.line


def test_prometheus_shows_the_stall(stall: Stall) -> None:
    labels = '{loader="train",rank="0"}'
    found = dict(line.rsplit(" ", 1) for line in stall.page.splitlines() if not line.startswith("#"))
    assert float(found[f"energon_dali_trainer_waiting_seconds{labels}"]) > 1
    assert float(found[f"energon_dali_trainer_blocked_seconds_total{labels}"]) > 1
    assert float(found['energon_dali_stage_seconds_total{loader="train",rank="0",stage="encode_sample"}']) > 0.6


def test_numbers_for_a_log_show_the_stall(stall: Stall) -> None:
    assert 0.5 < stall.scalars["loader/blocked_share"] <= 1
    assert stall.scalars["loader/trainer_waiting_seconds"] > 1


def test_a_line_before_the_first_batch_says_what_starts() -> None:
    from tests.integrations.observed import full_loader

    loader = full_loader()
    nothing = LoaderStatistics(batches=0, elapsed_seconds=3.0, blocked_seconds=0.0, first_batch_seconds=None)
    loader.stats = lambda: replace(
        nothing, starting_seconds=3.0, waiting_seconds=3.0, waiting_for="worker 0 is starting"
    )
    (line,) = LoaderPanel(loader).lines()
    assert line == "train, rank 0: waiting 3.0 s for the first batch: worker 0 is starting, 0 batches in 3 s"
