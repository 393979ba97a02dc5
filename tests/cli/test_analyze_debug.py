"""`energon-dali analyze-debug` reads the debug logs of this package, and those of Energon."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from energon_dali.assembly.datasets import get_train_dataset
from energon_dali.cli.main import main
from energon_dali.datasets.wrappers.log_sample import LogSampleDataset
from energon_dali.diagnosis.debug_logs import DebugLogs
from energon_dali.samples.kinds import TextSample
from energon_dali.task_encoder.cooking import Cooker, basic_sample_keys
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.worker_config import WorkerConfig
from tests.datasets.oracle import Counting, config, take


class Encoder(DefaultTaskEncoder):  # type: ignore[type-arg]
    cookers: ClassVar = [Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=str(sample["json"])))]


def run(folder: Path, *words: str, answers: str | None = None) -> Result:
    command = ["analyze-debug", str(folder), "--heatmap-path", str(folder / "map.png"), *words]
    return CliRunner().invoke(main, command, input=answers)


def write(path: Path, *entries: Any) -> None:
    with path.open("a") as file:
        file.writelines((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries)


def ours(rank: int, *batches: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"rank": rank, "stream": rank, "count": n, "keys": keys, **more} for n, keys in enumerate(batches)]


def test_two_ranks_are_merged_step_by_step(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *ours(0, ["k0", "k1"], ["k2", "k3"]))
    write(tmp_path / "b.jsonl", *ours(1, ["k4", "k5"], ["k0", ["k6"]], None))
    done = run(tmp_path, "--heatmap-gain", "1", "--no-colors")
    assert done.exit_code == 0, done.output
    assert "Found 7 samples in 2 steps." in done.output
    assert "Delivered more than once: 1 sample, at most 2 times" in done.output
    assert "Rank 1: 4 samples in 2 steps" in done.output
    # Samples are numbered in the order in which they come first: k0 k1 k4 k5, then k2 k3 k6.
    lit = np.asarray(Image.open(tmp_path / "map.png").convert("L")) > 0
    assert np.array_equal(lit.T, [[1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 1]])


def test_the_image_is_scaled_down_and_coloured_by_rank(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *ours(0, *([f"a{n}"] for n in range(100))))
    write(tmp_path / "b.jsonl", *ours(1, *([f"b{n}"] for n in range(100))))
    assert run(tmp_path, "--heatmap-steps", "10", "--heatmap-samples", "7", "--heatmap-gain", "1").exit_code == 0
    image = np.asarray(Image.open(tmp_path / "map.png")).astype(int)
    assert image.shape == (7, 10, 3)
    assert np.array_equal((image > 0).any(2)[:, 0], [1, 0, 0, 0, 0, 0, 0])  # 29 samples a row, 20 in 10 steps
    assert np.ptp(image[0, 0]) > 0


def test_a_restarted_job_goes_on_where_its_first_log_ended(tmp_path: Path) -> None:
    write(tmp_path / "z.jsonl", *ours(0, ["k0"], ["k1"]))
    write(tmp_path / "a.jsonl", *ours(0, ["k2"], ["k3"]))
    os.utime(tmp_path / "z.jsonl", (1, 1))
    assert "4 samples in 4 steps" in run(tmp_path).output
    assert "Found 3 samples in 3 steps" in run(tmp_path, "--skip", "1").output


def test_the_log_of_a_training_and_a_validation(tmp_path: Path) -> None:
    lines = tmp_path / "data" / "lines.jsonl"
    lines.parent.mkdir()
    lines.write_text("".join(json.dumps({"a": number}) + "\n" for number in range(6)))
    assert CliRunner().invoke(main, ["prepare", str(lines), "--no-progress"]).exit_code == 0
    job = WorkerConfig(
        rank=0, world_size=1, num_workers=0, worker_log_level=1, worker_debug_path=str(tmp_path / "r{worker_id}.jsonl")
    )
    take(get_train_dataset(str(lines), worker_config=job, task_encoder=Encoder(), repeat=False), 10)
    take(LogSampleDataset(Counting(3, job), "val"), 10)
    done = run(tmp_path, "--include-modality", "train")
    assert "Found 9 samples in 9 steps" in done.output  # the mode of a dataset that does not say it is not known
    (tmp_path / "r0.jsonl").unlink()
    take(get_train_dataset(str(lines), worker_config=job, task_encoder=Encoder(), repeat=False), 10)
    assert "Found 6 samples" in run(tmp_path).output
    assert run(tmp_path, "--include-modality", "val").exit_code == 1


def test_lines_of_a_log_dataset_count_once_and_old_logs_are_read(tmp_path: Path) -> None:
    job = config(1, worker_log_level=1, worker_debug_path=str(tmp_path / "a.jsonl"))
    take(LogSampleDataset(Counting(3, job), "train"), 10)
    assert "Delivered more than once: 0 samples" in run(tmp_path).output
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "a.jsonl", *ours(0, ["a"], ["b"]), *ours(0, ["a"], ["b"], mode="val"))
    done = run(tmp_path, "--include-modality", "val,train")
    assert "Found 2 samples in 2 steps.\n  Delivered more than once: 0" in done.output


def energon(loader: int, training: bool, *batches: list[str]) -> list[dict[str, Any]]:
    tree = {"type": "MapDataset", "dataset": {"map_fn_config": {"training": training}}}
    start = {"t": "SavableLoader.__init__", "r": 0, "w": None, "id": loader, "config": tree}
    line = {"t": "SavableDataLoader.yield", "r": 0, "w": None, "id": loader}
    return [start, *({**line, "global_idx": step, "keys": keys} for step, keys in enumerate(batches))]


def test_energons_logs(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *energon(0, True, ["a", "b"], ["c", "d"]), *energon(1, False, ["e"]))
    assert "Found 4 samples in 2 steps" in run(tmp_path).output
    assert "Found 1 sample in 1 step" in run(tmp_path, "--include-modality", "val").output
    done = run(tmp_path, "--include-modality", "train,val", answers="7\n1\n")
    assert "loader 0: train, 2 steps" in done.output
    assert "Found 1 sample" in done.output
    kind = "WebdatasetSampleLoaderDataset._slices_iter.yield"
    write(tmp_path / "w.jsonl", *({"t": kind, "r": 0, "w": 0, "key": f"k{n}", "count": n} for n in range(5)))
    done = run(tmp_path, "--force-loading-order")
    assert "Found 5 samples in 5 steps" in done.output
    assert "w.jsonl: 5 samples" in done.output


def test_lines_that_are_broken_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *ours(0, ["a"]), '{"rank": 0, "str', "[]", {"rank": -1, "stream": 0, "keys": ["b"]})
    assert "Left out: 3 lines" in run(tmp_path).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--skip", "9"], "name no sample after step 9"),
        (["--include-modality", "test"], "'test' is not one of train, val"),
        (["--force-loading-order"], "only Energon's workers write it"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, words: list[str], message: str) -> None:
    write(tmp_path / "a.jsonl", *ours(0, ["a"]))
    done = run(tmp_path, *words)
    assert (done.exit_code, message in done.output) == (1, True), done.output
    assert not (tmp_path / "map.png").exists()


def test_a_folder_without_logs(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.exit_code, "There is no debug log in" in done.output) == (1, True)
    assert DebugLogs([]).deliveries(["train"]).num_steps == 0
