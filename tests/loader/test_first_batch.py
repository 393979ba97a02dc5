"""What happens between `iter(loader)` and the first batch: what is imported there, and what the batch waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DaliDecoder, DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energon_dali.decode.interface import Decoder
from tests.av.corpus import video_file
from tests.loader.dataset_folder import picture, prepare, write_shards
from tests.running_time import wait_until

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
import energon_dali as e

folder, decoder, start_method, noted = sys.argv[1:]
options = {"image_decode": "torchrgb8", "av_decode": e.VideoClips(1, 2, size=(48, 32))}
known = set()
os.register_at_fork(after_in_child=lambda: known.update(sys.modules))

class Encoder(e.DefaultTaskEncoder):
    decoder = e.SampleDecoder(**options) if decoder == "sample" else e.DaliDecoder(image_decode_device="cpu", **options)

    def preencode_sample(self, sample):  # in the worker, after it has decoded what it decodes
        Path(noted).write_text(json.dumps([os.getpid(), sorted(set(sys.modules) - known)]))
        return sample

    def postencode_sample(self, sample):
        return sample

    def batch(self, samples):
        return len(samples)

    def encode_batch(self, batch):
        return batch

if __name__ == "__main__":
    dataset = e.get_train_dataset(
        folder, worker_config=e.WorkerConfig(rank=0, world_size=1, num_workers=1), batch_size=4, task_encoder=Encoder(),
        shuffle_buffer_size=None, max_samples_per_sequence=None,
    )
    with e.get_loader(dataset, start_method=start_method) as loader:
        before = set(sys.modules)
        assert next(iter(loader)) == 4
        in_rank = sorted(set(sys.modules) - before)
    pid, in_worker = json.loads(Path(noted).read_text())
    assert pid != os.getpid()
    print(json.dumps({"before": sorted(before), "worker": in_worker, "rank": in_rank}))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"jpg": picture(number), "txt": b"an image"} for number in range(16)}
    return prepare(write_shards(tmp_path_factory.mktemp("images"), samples, 1), {"image": "jpg", "caption": "txt"})


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"mp4": video_file("h264-b-mp4"), "txt": b"a video"} for number in range(16)}
    return prepare(write_shards(tmp_path_factory.mktemp("videos"), samples, 1), {"image": "mp4", "caption": "txt"})


def imports_of(folder: Path, decoder: str, start_method: str, tmp_path: Path) -> dict[str, set[str]]:
    """Returns which modules were there before `iter(loader)`, and which a worker and the rank imported afterwards."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(folder), decoder, start_method, str(tmp_path / "noted.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: set(modules) for name, modules in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("decoder", [pytest.param("sample", marks=pytest.mark.sweep), "dali"])
def test_a_forked_worker_imports_nothing_for_images(images: Path, decoder: str, tmp_path: Path) -> None:
    found = imports_of(images, decoder, "fork", tmp_path)
    assert not found["worker"]
    assert "nvidia.dali" not in found["rank"]
    assert ("nvidia.dali" in found["before"]) == (decoder == "dali")
    assert "av" not in found["before"]  # the field map has no video


@pytest.mark.parametrize("decoder", ["sample", pytest.param("dali", marks=pytest.mark.sweep)])
def test_a_forked_worker_imports_no_library_for_videos(videos: Path, decoder: str, tmp_path: Path) -> None:
    found = imports_of(videos, decoder, "fork", tmp_path)
    assert not {module for module in found["worker"] if not module.startswith("energon_dali.")}
    assert not found["rank"]
    assert "nvidia.dali" not in found["before"]  # the field map has no image


def test_where_workers_are_spawned_the_trainer_does_not_import_what_only_they_need(
    images: Path, tmp_path: Path
) -> None:
    found = imports_of(images, "sample", "spawn", tmp_path)
    assert {"PIL.JpegImagePlugin", "numpy.random"} <= found["worker"]
    assert "PIL.JpegImagePlugin" not in found["before"] | found["rank"]
    assert "PIL.FitsImagePlugin" not in found["worker"], "readers of rare formats are not imported for a JPEG"


class Gated(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes no batch but the first before a file exists."""

    def __init__(self, decoder: Decoder, gate: Path) -> None:
        self.decoder = decoder
        self.gate = gate
        self.made = 0

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.__key__ for sample in samples]

    def encode_batch(self, batch: list[str]) -> list[str]:
        if self.made:
            assert wait_until(self.gate.exists, 60)
        self.made += 1
        return batch


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("decoder", [SampleDecoder(), DaliDecoder(image_decode_device="cpu")], ids=["sample", "dali"])
def test_the_first_batch_arrives_before_the_second_is_made(
    images: Path, decoder: Decoder, workers: int, tmp_path: Path
) -> None:
    dataset = get_train_dataset(
        str(images),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Gated(decoder, tmp_path / "gate"),
    )
    with get_loader(dataset, start_method="fork") as loader:
        batches = iter(loader)
        assert next(batches) == ["k0", "k1", "k2", "k3"]
        (tmp_path / "gate").touch()
        assert next(batches) == ["k4", "k5", "k6", "k7"]
