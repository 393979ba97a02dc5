"""A run that is killed after every single batch, and restored each time, loses and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.loader.dataset_folder import captioning_dataset

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, sys, time
import energon_dali.decode.dali.dispatch, nvidia.dali.fn, torch
from energon_dali import DaliDecoder, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.decode import RandomResizedCrop

class Encoder(DefaultTaskEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu", operations=[RandomResizedCrop(16)])

def run(folder, place, until, hang):
    config = WorkerConfig(rank=0, world_size=1, num_workers=2, num_streams=4, seed_offset=5)
    dataset = get_train_dataset(
        folder, batch_size=3, shuffle_buffer_size=20, worker_config=config, task_encoder=Encoder()
    )
    loader = get_savable_loader(dataset)
    saved = json.load(open(place)) if os.path.exists(place) else {"state": None, "batches": []}
    if saved["state"] is not None:
        loader.restore_state_rank(saved["state"])
    batches = saved["batches"]
    for batch in loader:
        batches.append([batch.__key__, batch.image.sum().item()])
        with open(place + ".tmp", "w") as file:
            json.dump({"state": loader.save_state_rank(), "batches": batches}, file)
        os.replace(place + ".tmp", place)
        if hang:
            time.sleep(600)  # until it is killed, while workers and decoding run ahead
        if len(batches) == until:
            break

print(os.getpid(), flush=True)
for line in sys.stdin:  # each run is a process of its own; only the imports, most of its time, are shared
    pid = os.fork()
    if pid == 0:
        run(*json.loads(line))
        sys.exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def runs(warm_python: str) -> Iterator[subprocess.Popen[str]]:
    """The process that starts the runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen([warm_python, "-c", PROGRAM], env=environment, stdin=pipe, stdout=pipe, text=True) as runs:
        process = psutil.Process(answer(runs))
        yield runs
        for left in process.children():  # of a test that failed
            left.kill()
    assert runs.returncode == 0


def start(runs: subprocess.Popen[str], folder: Path, place: Path, until: int, *, hang: bool) -> int:
    """Starts a run and returns its pid."""
    assert runs.stdin is not None
    runs.stdin.write(json.dumps([str(folder), str(place), until, hang]) + "\n")
    runs.stdin.flush()
    return answer(runs)


def answer(runs: subprocess.Popen[str]) -> int:
    """Returns the next number that the process prints: a pid, or the exit code of a run that ended."""
    assert runs.stdout is not None
    return int(runs.stdout.readline())


def delivered(place: Path) -> int:
    return len(json.loads(place.read_text())["batches"]) if place.exists() else 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("until", [4, pytest.param(6, marks=pytest.mark.sweep)])
def test_killed_after_every_batch(tmp_path: Path, runs: subprocess.Popen[str], until: int) -> None:
    folder = captioning_dataset(tmp_path / "data", count=30)
    straight, broken = tmp_path / "straight.json", tmp_path / "broken.json"
    start(runs, folder, straight, until, hang=False)
    assert answer(runs) == 0
    for batches in range(1, until):
        pid = start(runs, folder, broken, until, hang=True)
        deadline = time.monotonic() + 100
        while delivered(broken) < batches:
            assert psutil.pid_exists(pid), "the program ended by itself"
            assert time.monotonic() < deadline, "no batch came"
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert answer(runs) == -signal.SIGKILL
        assert delivered(broken) == batches
    start(runs, folder, broken, until, hang=False)
    assert answer(runs) == 0
    assert json.loads(broken.read_text())["batches"] == json.loads(straight.read_text())["batches"]
