"""Every workload of the suites for GPUs once on the CPU, small; its numbers mean nothing."""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import energon_dali
from benchmarks import plot, plot_growth, run
from benchmarks.candidates import checks, energon_style, ranks
from benchmarks.candidates.task import RESULT, LeftOutError, Task
from benchmarks.contestants import BACKENDS, BLOCK, CEILING, ITERATOR, contestants
from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.workload import Workload
from benchmarks.workload_run import prepared
from tests.part import sampled

pytestmark = pytest.mark.timeout(400)  # a program per candidate on what may be a busy machine
SUITES = ("gpu-images", "gpu-mixed", "gpu-ranks", "gpu-video", "gpu-vision", "growth")


def chosen(*arguments: str) -> list[Workload]:
    return run.choose(run.parse([*arguments]))


SMALL = {
    f"{suite}/{work.name}": work for suite in ("gpu-images", "gpu-video") for work in chosen(suite, "--quick", "--all")
}
HOST = {f"{suite}/{work.name}": work for suite in ("gpu-mixed", "gpu-ranks") for work in chosen(suite, "--quick")}


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few samples are checked, and torch takes one thread, as in a candidate's process."""
    monkeypatch.setattr(checks, "CHECKED_SAMPLES", 32)
    monkeypatch.setattr(checks, "CHECKED_VIDEOS", 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def dataset(recipe: Recipe, cache: Path) -> Path:
    make_dataset(recipe, cache, progress=False, processes=1)
    return prepared(recipe, cache)


def measure(work: Workload, name: str, cache: Path, action: str = "check") -> dict[str, float]:
    """Runs a candidate in this process, without worker processes."""
    candidate = next(one for one in work.candidates if one.name == name)
    options = {**candidate.options, **({"workers": 0} if "workers" in candidate.options else {})}
    task = Task(
        program=candidate.program,
        action=action,
        dataset=str(dataset(work.recipe, cache)),
        output=work.output,
        batch_size=work.batch_size,
        warmup_samples=0,
        samples=work.samples,
        seconds=0.05,
        trains=True,
        options=options,
    )
    numbers: dict[str, float] = importlib.import_module(f"benchmarks.candidates.{candidate.program}").measure(task)
    return numbers


@pytest.mark.parametrize("name", sampled(SMALL, 3))
def test_the_ceiling_of_every_workload_delivers_what_the_files_hold(name: str, cache: Path) -> None:
    work = SMALL[name]
    if "H.264" in work.title:
        with pytest.raises(LeftOutError, match=r"no H\.264 on the CPU"):
            measure(work, CEILING, cache)
        return
    assert measure(work, CEILING, cache)["samples_checked"] >= 2


def test_time_cpu_and_waiting_are_measured(cache: Path) -> None:
    numbers = measure(SMALL["gpu-images/imagenet-uint8"], CEILING, cache, "both")
    assert numbers["samples_checked"] >= 32
    assert numbers["samples_per_second"] > 0
    assert numbers["cpu_milliseconds_per_sample"] >= 0
    assert 0 <= numbers["trainer_blocked_share"] <= 1
    assert numbers["training_step_seconds"] > 0
    assert not any("gpu" in name for name in numbers)


@pytest.mark.parametrize("candidate", [BLOCK, ITERATOR])
@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "gpu-images/formats-uint8",
            "gpu-images/formats-float224",
            "gpu-video/short-vp9-frame-patches",
            "gpu-images/formats-patches",
            "gpu-video/short-vp9-frames",
            "gpu-video/short-vp9-frames224",
        ],
        2,
    ),
)
def test_every_output_is_the_same_through_our_loader_and_dalis_iterator(name: str, candidate: str, cache: Path) -> None:
    assert measure(SMALL[name], candidate, cache)["samples_checked"] >= 2


def test_h264_comes_through_our_loader_on_the_cpu_too(cache: Path) -> None:
    assert measure(SMALL["gpu-video/short-frames224"], BLOCK, cache)["samples_checked"] >= 2


@pytest.fixture
def _programs_start_at_once(monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setenv("WARM_WORKERS", "1")


@pytest.mark.usefixtures("_programs_start_at_once")
def test_a_run_ends_in_a_report_and_a_chart_that_say_what_they_are(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    code = run.main(
        [
            "gpu-images",
            "--quick",
            "--device",
            "cpu",
            "--repetitions",
            "1",
            "--only",
            "imagenet-uint8",
            "--candidates",
            CEILING,
            "block feed",
            "torch",
            "--json",
            str(path),
            "--cache",
            str(cache),
        ]
    )
    assert code == 0
    report = json.loads(path.read_text())
    assert (report["device"], report["quick"]) == ("cpu", True)
    assert plot.caution(report)
    assert "these figures mean nothing" in capsys.readouterr().out
    (work,) = report["workloads"]
    assert work["bytes_per_sample"] > 50_000
    for one in work["candidates"]:
        assert not one["left_out"]
        assert one["samples_checked"] >= 64
        assert {"cpu_cores", "first_batch_seconds", "trainer_blocked_share"} <= set(one["summary"])
    ratio = next(bar for bar in work["bars"] if (bar["of"], bar["to"]) == (BLOCK, CEILING))
    assert ratio["ratio"] > 0
    assert ratio["met"] is None  # what a GPU has to reach is not asked of the CPU
    assert plot.main([str(path), str(tmp_path / "chart.png")]) == 0


@pytest.mark.sweep
@pytest.mark.usefixtures("_programs_start_at_once")
def test_growth_is_drawn_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "growth.json"
    code = run.main(
        [
            "growth",
            "--quick",
            "--only",
            "shards",
            "--candidates",
            "DALI, 100",
            "DALI, 1,",
            "--json",
            str(path),
            "--cache",
            str(tmp_path),
        ]
    )
    assert code == 0
    report = json.loads(path.read_text())
    ((series, points),) = plot_growth.lines_of(report["workloads"][0]).items()
    assert series == "energon_dali DALI"
    assert [at for at, _ in points] == [100, 1000]
    assert plot_growth.main([str(path), str(tmp_path / "growth.png")]) == 0
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no lines to draw"):
        plot_growth.plot({"workloads": []}, tmp_path / "x.png")


def test_what_has_no_time_left_is_left_out(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "out.json"
    arguments = ["--quick", "--only", "hd-uint8", "--minutes", "0", "--json", str(path), "--cache", str(cache)]
    assert run.main(["gpu-images", *arguments, "--candidates", CEILING]) == 0
    (one,) = json.loads(path.read_text())["workloads"][0]["candidates"]
    assert "no time was left" in one["left_out"]
    assert one["summary"] == {}


@pytest.mark.sweep
@pytest.mark.usefixtures("_programs_start_at_once")
def test_ranks_are_timed_together_and_added_up(cache: Path) -> None:
    numbers = measure(HOST["gpu-ranks/all-gpus"], CEILING, cache, "both")
    assert numbers["ranks"] == 2
    assert numbers["samples_checked"] >= 32
    assert 0 < numbers["slowest_rank_share"] <= 1
    assert numbers["cpu_milliseconds_per_sample"] == pytest.approx(
        1e3 * numbers["cpu_cores"] / numbers["samples_per_second"]
    )


def test_numbers_of_ranks_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank sees one GPU, and how many ranks share the host; one of them is checked."""
    started: list[tuple[Task, str]] = []

    class Rank:
        """A process that has ended."""

        def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
            started.append((Task.from_json(command[-1]), f"{env['CUDA_VISIBLE_DEVICES']} {env['LOCAL_WORLD_SIZE']}"))
            rate = 100.0 * int(env["LOCAL_RANK"])
            numbers = {"samples_per_second": rate, "cpu_cores": 2.0, "first_batch_seconds": rate}
            checked = {} if env["LOCAL_RANK"] != "0" else {"samples_checked": 7}
            self.line = RESULT + json.dumps({"numbers": {**numbers, **checked}, "versions": {}})

        def communicate(self) -> tuple[str, None]:
            return f"something else\n{self.line}\n", None

    monkeypatch.setattr(ranks.subprocess, "Popen", Rank)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5,7")
    (work,) = chosen("gpu-ranks", "--device", "gpu", "--only", "all-gpus")
    task = Task(
        program="ranks",
        action="both",
        dataset=".",
        output=work.output,
        batch_size=2,
        warmup_samples=0,
        samples=2,
        device="gpu",
        trains=True,
        options=dict(work.candidates[1].options),
    )
    numbers = ranks.measure(task)
    assert [where for _, where in started] == ["4 3", "5 3", "7 3"]
    assert [task.action for task, _ in started] == ["both", "time", "time"]
    assert {(task.program, task.trains, task.options["ranks"]) for task, _ in started} == {("energon_style", False, 3)}
    assert len({task.options["meeting"] for task, _ in started}) == 1
    assert numbers == {
        "samples_per_second": 300,
        "cpu_cores": 6,
        "first_batch_seconds": 200,
        "slowest_rank_share": 0,
        "ranks": 3,
        "cpu_milliseconds_per_sample": 20,
        "samples_checked": 7,
    }


@pytest.mark.sweep
def test_a_ceiling_decodes_for_front_ends_and_is_not_checked(cache: Path) -> None:
    numbers = measure(HOST["gpu-mixed/webp-qwen2-vl"], CEILING, cache, "both")
    assert "samples_checked" not in numbers
    assert numbers["samples_per_second"] > 0
    suffixes = {path.suffix for path in members(dataset(HOST["gpu-mixed/webp"].recipe, cache))}
    assert {".jpg", ".webp"} <= suffixes


def members(folder: Path) -> list[Path]:
    found = []
    for shard in folder.glob("*.tar"):
        with tarfile.open(shard) as tar:
            found += [Path(name) for name in tar.getnames()]
    return found


def test_videos_take_turns_in_sizes_of_which_one_is_cut() -> None:
    recipe = chosen("gpu-mixed", "--device", "gpu", "--only", "clips-sizes")[0].recipe
    sizes = [recipe.size_of(index) for index in range(5)]
    assert sizes == [(1280, 720), (1280, 714), (640, 360), (1920, 1080), (1280, 720)]
    assert all(side % 2 == 0 for size in sizes for side in size)  # as 4:2:0 needs


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_names_are_unique_and_programs_there(suite: str, device: str) -> None:
    works = chosen(suite, "--all", "--device", device)
    assert len({work.name for work in works}) == len(works)
    for work in works:
        assert work.device == device
        for candidate in work.candidates:
            assert callable(importlib.import_module(f"benchmarks.candidates.{candidate.program}").measure)


def test_a_gpu_is_held_to_the_bars_and_the_cpu_is_not() -> None:
    def bounds(device: str) -> set[tuple[Any, Any]]:
        (work,) = chosen("gpu-images", "--device", device, "--only", "imagenet-uint8")
        return {(one.at_least, one.at_most) for one in (*work.bars, *work.limits)}

    assert bounds("cpu") == {(None, None)}
    assert bounds("gpu") == {(0.9, None), (None, 0.25), (None, 0.02), (None, None)}
    video = chosen("gpu-video", "--device", "gpu", "--only", "long-frames224")[0]
    assert {bar.at_least for bar in video.bars} == {0.85, None}
    assert len(contestants("gpu", native=True)) == len(contestants("cpu", native=True)) + 1


def test_a_suite_that_needs_no_gpu_refuses_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.parse(["cpu", "--device", "gpu"])
    assert "leave --device out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="the suite growth has batch-size"):
        chosen("growth", "--only", "height")


def test_a_video_backend_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (work,) = chosen("gpu-video", "--device", "gpu", "--only", "short-frames224")
    (one,) = [one for one in work.candidates if one.options.get("video_backend") == "pynvvideocodec"]
    monkeypatch.setattr("energon_dali.decode.video_backends.base._finds", lambda module: module == "av")
    task = Task(
        program=one.program,
        action="time",
        dataset=".",
        output=work.output,
        batch_size=2,
        warmup_samples=0,
        samples=2,
        device="gpu",
        options=dict(one.options),
    )
    with pytest.raises(LeftOutError, match="which is not installed"):
        energon_style.make_decoder(energon_dali, task)
    images = {candidate.name for candidate in contestants("gpu", native=True)}
    assert images.isdisjoint(BACKENDS.values())
