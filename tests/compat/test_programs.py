"""Programs written for Energon run here without an edit: the same samples, and exact resume.

`tests/data/energon_programs.json` holds what Energon 7.4.1 made of them; `expected.py` writes it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import energon_dali.compat  # noqa: F401 - installs the names

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
EXPECTED = json.loads((ROOT / "tests" / "data" / "energon_programs.json").read_text())
TRAINING = ("vqa_provider", "chatml_train", "diffusion_latents", "mimo_captions", "length_pool")


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_COMPAT_TRUST", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The shards of all programs, prepared by one of them."""
    folder = tmp_path_factory.mktemp("programs")
    before = set(sys.modules)
    sys.path.insert(0, str(PROGRAMS))
    try:
        importlib.import_module("make_shards").main(str(folder))
        importlib.import_module("prepare_data").main([str(folder), str(folder / "prepared.json")])
        yield folder
    finally:
        sys.path.remove(str(PROGRAMS))
        for name in set(sys.modules) - before:
            if str(PROGRAMS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def run(program: str, data: Path, report: Path, *options: str) -> dict[str, Any]:
    importlib.import_module(program).main([str(data), str(report), *options])
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_the_preparation_script_prepares_as_with_energon(data: Path) -> None:
    assert json.loads((data / "prepared.json").read_text()) == EXPECTED["prepare_data"]


@pytest.mark.parametrize("program", TRAINING)
def test_a_program_makes_the_samples_that_it_makes_with_energon(program: str, data: Path, tmp_path: Path) -> None:
    found = run(program, data, tmp_path / "report.json")
    assert sorted(found["samples"]) == EXPECTED[program]["samples"]
    assert sorted(found["batches"]) == EXPECTED[program]["batches"]


@pytest.mark.parametrize("program", TRAINING)
def test_a_program_resumes_exactly(program: str, data: Path, tmp_path: Path) -> None:
    whole = run(program, data, tmp_path / "whole.json")
    for cut in (1, 3):
        state = str(tmp_path / f"state-{cut}.pt")
        head = run(program, data, tmp_path / "head.json", "--stop-after", str(cut), "--state", state)
        tail = run(program, data, tmp_path / "tail.json", "--state", state)
        assert head["samples"] + tail["samples"] == whole["samples"]
        assert head["batches"] + tail["batches"] == whole["batches"]


@pytest.mark.parametrize("program", ["chatml_train", "vqa_provider"])
def test_a_program_runs_by_the_command_with_workers(program: str, data: Path, tmp_path: Path, warm_python: str) -> None:
    """The hooks of the second read globals that the program sets, so its workers have to be copies of the program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    del environment["ENERGON_DALI_COMPAT_TRUST"]
    report = tmp_path / "report.json"
    command = [warm_python, "-m", "energon_dali.compat", "--trust-datasets", str(PROGRAMS / f"{program}.py")]
    subprocess.run([*command, str(data), str(report), "--num-workers", "2"], env=environment, check=True, timeout=100)
    assert sorted(json.loads(report.read_text())["samples"]) == EXPECTED[program]["samples"]


@pytest.mark.parametrize("encoder", ["current", "older", "batching"])
def test_a_task_encoder_may_put_its_datasets_together_itself(encoder: str, data: Path, tmp_path: Path) -> None:
    once = run("own_mixture", data, tmp_path / "once.json", "--encoder", encoder)
    assert sorted(once["samples"]) == EXPECTED["own_mixture"]["samples"]
    state = str(tmp_path / "state.pt")
    for part in ("once", "train", "validation"):
        options = ("--encoder", encoder, "--part", part)
        whole = run("own_mixture", data, tmp_path / "whole.json", *options)
        head = run("own_mixture", data, tmp_path / "head.json", *options, "--stop-after", "3", "--state", state)
        tail = run("own_mixture", data, tmp_path / "tail.json", *options, "--state", state)
        assert head["samples"] + tail["samples"] == whole["samples"]
        os.remove(state)


@pytest.mark.usefixtures("warm_workers")
def test_with_workers_a_mixture_of_its_own_has_the_same_samples(data: Path, tmp_path: Path) -> None:
    found = run("own_mixture", data, tmp_path / "report.json", "--num-workers", "2")
    assert sorted(found["samples"]) == EXPECTED["own_mixture"]["samples"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
def test_a_program_trains_and_resumes_in_the_workers_of_torchs_loader(data: Path, tmp_path: Path) -> None:
    whole = run("text_rows", data, tmp_path / "whole.json")
    keys = [key for batch, _ in whole["batches"] for key in batch]
    assert sorted(keys) == sorted(row[0] for row in EXPECTED["length_pool"]["samples"]), "each sample once"
    assert whole["length"] == len(keys)
    assert {worker for _, workers in whole["batches"] for worker in workers} == {0, 1}
    state = str(tmp_path / "state.pt")
    head = run("text_rows", data, tmp_path / "head.json", "--stop-after", "3", "--state", state)
    tail = run("text_rows", data, tmp_path / "tail.json", "--state", state)
    assert head["batches"] + tail["batches"] == whole["batches"]


@pytest.mark.usefixtures("warm_workers")
def test_loaders_answer_as_torchs_loaders_do(data: Path) -> None:
    """A DataLoader without batching, with the same workers, has these values."""
    from megatron.energon import TextSample, WorkerConfig, get_loader, get_savable_loader, get_train_dataset
    from torch.utils.data import DataLoader, IterableDataset

    dataset = get_train_dataset(
        f"{data}/texts",
        sample_type=TextSample,
        batch_size=2,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    theirs = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    names = set(theirs.__dict__) - {"_DataLoader__initialized", "_DataLoader__multiprocessing_context"}
    for make in (get_loader, get_savable_loader):
        with make(dataset) as loader:
            assert isinstance(loader, DataLoader)
            assert isinstance(loader.dataset, IterableDataset)
            values = {name: getattr(loader, name) for name in names if not name.startswith("_")}
            expected = {name: getattr(theirs, name) for name in values}
            for name in ("sampler", "collate_fn"):  # torch's have no meaning without batching, and are private classes
                del values[name], expected[name]
            assert values == expected
            assert loader.sampler is None
            assert loader.collate_fn(values) is values
            assert next(iter(loader)).text


def test_accelerate_leaves_a_loader_alone(data: Path) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from megatron.energon import TextSample, WorkerConfig, get_savable_loader, get_train_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        f"{data}/texts",
        sample_type=TextSample,
        batch_size=2,
        worker_config=config,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    loader = get_savable_loader(dataset)
    try:
        assert Accelerator(cpu=True).prepare(loader) is loader
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
