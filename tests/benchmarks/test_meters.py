"""What the meters of a run count."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.candidates.gpu_meter import GpuMeter
from benchmarks.candidates.process_tree import tree_cpu_seconds
from benchmarks.candidates.training_step import make_training_step, measure_blocked

BUSY = "import time\nwhile time.process_time() < 0.5: pass"


def test_the_time_of_children_counts_while_they_run_and_when_they_ended() -> None:
    before = tree_cpu_seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert tree_cpu_seconds() - before >= 0.45
    waiting = "input()"
    before = tree_cpu_seconds()
    command = [sys.executable, "-c", f"{BUSY}\nprint('done', flush=True)\n{waiting}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_cpu_seconds() - before >= 0.45
        child.communicate(b"\n")


def test_a_trainer_that_waits_for_every_batch_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)

    def passing(seconds: float) -> Any:
        def work() -> None:
            clock.now += seconds

        return work

    numbers = measure_blocked(passing(1.0), passing(4.0), 2.0, seconds=50.0, steps=3)
    assert numbers["trainer_blocked_share"] == pytest.approx(0.2)
    assert numbers["training_step_slowdown"] == pytest.approx(2.0)
    assert numbers["training_step_seconds"] == 2.0
    few = measure_blocked(passing(1.0), passing(4.0), 2.0, seconds=0.0, steps=3)
    assert few["trainer_blocked_share"] == pytest.approx(0.2)


def test_a_step_on_the_cpu_lasts_as_long_as_told() -> None:
    step, alone_seconds = make_training_step("cpu", 0.02)
    assert alone_seconds == 0.02
    began = time.perf_counter()
    step()
    assert time.perf_counter() - began >= 0.02


class Library:
    """nvidia-ml-py of a GPU that has no JPEG engine."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.used = 2**30
        self.asked: list[object] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.asked.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        self.asked.append(name)
        return name

    def nvmlDeviceGetMemoryInfo(self, _: object) -> Any:
        self.used += 2**20
        return SimpleNamespace(used=self.used)

    def nvmlDeviceGetUtilizationRates(self, _: object) -> Any:
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetDecoderUtilization(self, _: object) -> list[int]:
        return [70, 1000]

    def nvmlDeviceGetJpgUtilization(self, _: object) -> list[int]:
        raise self.NVMLError


@pytest.mark.parametrize(("visible", "asked"), [("2,0", 2), ("GPU-abc", "GPU-abc")])
def test_the_gpu_that_is_used_is_measured(monkeypatch: pytest.MonkeyPatch, visible: str, asked: object) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with GpuMeter("gpu") as meter:
        while len(meter.numbers()) < 3:
            time.sleep(0.01)
    numbers = meter.numbers()
    assert library.asked == [asked]
    assert numbers["gpu_percent"] == 40
    assert numbers["video_engine_percent"] == 70
    assert numbers["gpu_memory_mib"] >= 1
    assert "jpeg_engine_percent" not in numbers


def test_without_a_gpu_or_its_library_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for device in ("gpu", "cpu"):
        with GpuMeter(device) as meter:
            pass
        assert meter.numbers() == {}
