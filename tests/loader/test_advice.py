"""Nine loaders that wait for something known, and what is said about them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.waits import SCENARIOS, Scenario, memory_of, open_scenario, train, write_images
from energon_dali import get_loader
from energon_dali.diagnosis.bench import bench
from energon_dali.diagnosis.rates import Setting
from energon_dali.loader import host_memory
from energon_dali.loader.advice import Work, diagnose
from energon_dali.loader.host_memory import MemoryLeft, memory_left
from energon_dali.loader.statistics import LoaderStatistics
from tests.running_time import RunningTime

SECONDS = 0.02
"""What the slow part takes for a sample."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("waits")
    return {large: write_images(folder / str(large), large=large, samples=16) for large in (False, True)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_limits_a_loader_is_found(
    scenario: Scenario, folders: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plenty").write_text("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "plenty")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    folder = folders[scenario.large_images]
    dataset = open_scenario(scenario, folder, 2, seconds=SECONDS, batch_size=2)
    with memory_of(scenario, tmp_path), get_loader(dataset, start_method="fork") as loader:
        batches = iter(loader)
        for _ in itertools.islice(batches, 8):
            pass
        before = loader.stats()
        if scenario.step_seconds:
            train(batches, scenario.step_seconds, 1.5)
        else:
            with RunningTime() as passed:
                taken = 0
                while taken < 32 or passed.seconds < 1:  # workers report every quarter of a second
                    next(batches)
                    taken += 1
                # Rows are read in groups: the batches so far may all be of rows that were read before.
                while scenario.reading is not None and passed.seconds < 10:
                    next(batches)
                    if loader.stats().since(before).stage_seconds.get("read", 0.0) > 0.5:
                        break
        found = diagnose(loader.stats().since(before), num_workers=2, memory=memory_left())
    assert found.cause in scenario.causes, str(found)
    if "hook" in found.cause:
        assert found.stage == "encode_sample"
        assert "Your hook encode_sample takes most of it" in found.finding


def test_bench_says_so_too(folders: dict[bool, Path]) -> None:
    scenario = next(one for one in SCENARIOS if one.name == "slow storage, by latency")

    def opened(setting: Setting) -> Any:
        return open_scenario(scenario, folders[False], setting.num_workers, seconds=SECONDS, batch_size=2)

    begun: list[str] = []
    result = bench(opened, [Setting(1)], seconds=0.2, progress=begun.append)
    advice = " ".join(result.advice)
    assert "Waiting for storage takes most of it" in advice
    assert "our hook" not in advice, "there is no encoder of the user's with hooks"
    assert "ecoding takes" not in advice
    assert [stage.name for stage in result.stages][-1] == "batching"
    assert begun[-1] == "measuring own, 1 worker, prefetch_factor=2 (1 of 1)"


def statistics(seconds: dict[str, float], cpu: dict[str, float], **options: Any) -> LoaderStatistics:
    fields: dict[str, Any] = {"elapsed_seconds": 10.0, "blocked_seconds": 10.0, "batches": 9, **options}
    return LoaderStatistics(first_batch_seconds=0.0, stage_seconds=seconds, cpu_seconds=cpu, **fields)


def test_a_computing_hook_that_waits_for_a_core_does_not_sleep() -> None:
    given: Any = {"hooks": ["encode_sample"]}
    found = statistics({"encode_sample": 20.0}, {"encode_sample": 4.0}, core_wait_seconds=16.0, **given)
    assert diagnose(found, num_workers=2, cores=2).cause == "computing hook"
    found = statistics({"encode_sample": 20.0}, {"encode_sample": 4.0}, core_wait_seconds=1.0, **given)
    assert diagnose(found, num_workers=2, cores=2).cause == "sleeping hook"
    assert Work.of(found, 2).wanted_cores == pytest.approx(0.5)


def test_more_workers_are_not_advised_where_all_cores_are_busy() -> None:
    found = diagnose(statistics({"decode": 19.0}, {"decode": 19.0}), num_workers=2, cores=2)
    assert not found.more_workers
    assert "more workers do not help, because all cores are busy" in str(found)
    found = diagnose(statistics({"decode": 19.0}, {"decode": 19.0}), num_workers=2, cores=8)
    assert found.more_workers


def test_workers_that_wait_for_the_rank_are_not_slow() -> None:
    waits = {"wait for trainer": 18.0, "encode_batch": 9.0}
    assert diagnose(statistics(waits, {"encode_batch": 9.0}), num_workers=2, cores=4).cause == "rank"
    waits = {"wait for trainer": 9.0, "wait for workers": 9.5, "encode_sample": 10.0}
    assert diagnose(statistics(waits, {}), num_workers=2, cores=4).cause == "slow worker"


def test_waits_while_a_loader_starts_are_shares_of_the_whole_time() -> None:
    """64 workers that are ready wait for the last one to start: once the advice said "279% of the workers' time"."""
    waits = {"wait for trainer": 64 * 4.0, "wait for workers": 5.0, "decode": 6.0}
    found = statistics(waits, {}, elapsed_seconds=6.0, starting_seconds=4.9)
    work = Work.of(found, 64)
    assert (work.idle_share, work.rank_waits) == (pytest.approx(4 / 6), pytest.approx(5 / 6))
    assert Work.of(found, 2).idle_share == 1, "there were more workers before"


@pytest.mark.parametrize(
    ("idle", "name"),
    [
        ({"worker 0": 0.2, "worker 1": 8.0, "worker 2": 7.0}, "Worker 0 is slower than the others"),
        ({"worker 0": 8.0, "worker 1": 8.0, "worker 3": 9.0}, "Worker 2 is slower than the others"),  # 3 has ended
        ({"worker 0": 5.0, "worker 1": 5.2, "worker 2": 5.3}, "One worker is slower than the others"),
        ({}, "One worker is slower than the others"),
    ],
)
def test_the_slow_worker_has_a_name(idle: dict[str, float], name: str) -> None:
    waits = {"wait for trainer": 15.0, "wait for workers": 9.5, "encode_sample": 10.0}
    found = diagnose(statistics(waits, {}, idle_seconds=idle), num_workers=3, cores=4)
    assert found.cause == "slow worker"
    assert found.finding.startswith(name)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("idle", [0.0, 18.0])
def test_a_decoder_of_the_rank_does_not_sleep(num_workers: int, idle: float) -> None:
    """It computes in threads of its own, which are not measured."""
    waits = {"decode": 9.0, "wait for decode": 8.5, "load": 1.0, "rank": 0.5, "wait for trainer": idle}
    found = diagnose(statistics(waits, {"load": 1.0, "rank": 0.5}), num_workers=num_workers, cores=2)
    assert (found.cause, found.stage, found.more_workers) == ("decoding", "decode", False)
    assert "sleep" not in str(found)
    assert "more workers do not help" in str(found)


def test_without_measurements_nothing_is_said() -> None:
    assert diagnose(statistics({}, {}), num_workers=0, cores=2).cause == "nothing"


def test_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert memory_left() is None
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    assert memory_left() == MemoryLeft(409_600, 1_024_000)
    for name, text in (("max", "100000"), ("current", "99000"), ("stat", "anon 5\ninactive_file 500\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_left() == MemoryLeft(1500, 100_000)
    assert MemoryLeft(1500, 100_000).is_short
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_left() == MemoryLeft(409_600, 1_024_000)
    assert not MemoryLeft(409_600, 1_024_000).is_short
