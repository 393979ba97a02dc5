"""A run that is killed after every single batch, and restored each time, loses and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.loader.dataset_folder import captioning_dataset

BATCHES = 6
ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, sys, time
from energon_dali import DaliDecoder, DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.decode import RandomResizedCrop

class Encoder(DefaultTaskEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu", operations=[RandomResizedCrop(16)])

folder, place, until, hang = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "hang"
config = WorkerConfig(rank=0, world_size=1, num_workers=2, num_streams=4, seed_offset=5)
dataset = get_train_dataset(folder, batch_size=3, shuffle_buffer_size=20, worker_config=config, task_encoder=Encoder())
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
"""


def start(folder: Path, place: Path, *, hang: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [str(folder), str(place), str(BATCHES), "hang" if hang else "run"]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=environment)


def delivered(place: Path) -> int:
    return len(json.loads(place.read_text())["batches"]) if place.exists() else 0


@pytest.mark.timeout(240)
def test_killed_after_every_batch(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "data", count=30)
    straight, broken = tmp_path / "straight.json", tmp_path / "broken.json"
    assert start(folder, straight, hang=False).wait(timeout=100) == 0
    for batches in range(1, BATCHES):
        process = start(folder, broken, hang=True)
        deadline = time.monotonic() + 100
        while delivered(broken) < batches:
            assert process.poll() is None, "the program ended by itself"
            assert time.monotonic() < deadline, "no batch came"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert delivered(broken) == batches
    assert start(folder, broken, hang=False).wait(timeout=100) == 0
    assert json.loads(broken.read_text())["batches"] == json.loads(straight.read_text())["batches"]
