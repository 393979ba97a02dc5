"""The commands of docs/distributed-training.md with two processes, as they are written, on a small archive."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.tasks.igpt.archives import write_archive

pytestmark = pytest.mark.timeout(600)  # clusters and interpreters with torch on what may be a busy machine
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "distributed-training.md").read_text()
BLOCKS = [shlex.split(block) for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
SMALL = (
    "dataset.cfg.image_size=4",
    "dataset.cfg.batch_size=4",
    "dataset.cfg.num_workers=0",
    "decoder=pil",
    "task.num_samples=1",
    "trainer.accelerator=cpu",
    "trainer.max_steps=2",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
)


def command_of(program: str) -> list[str]:
    (command,) = [block for block in BLOCKS if program in " ".join(block)]
    return command


def start(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "500"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )


def test_the_torchrun_command_trains_on_two_processes(tmp_path: Path, warm_python: str) -> None:
    write_archive(tmp_path)
    program, *arguments = command_of("torchrun")
    assert (program, arguments[0]) == ("torchrun", "--nproc-per-node=2")
    torchrun = [warm_python, "-m", "torch.distributed.run", "--master-port=0", "--standalone"]
    done = start([*torchrun, *arguments, *SMALL, "hydra.run.dir=run"], tmp_path, PYTHON_EXEC=warm_python)
    assert done.returncode == 0, done.stderr[-5000:]
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 2
    assert sorted(saved["ImageGPTDataModule"]["random"]) == ["0", "1"]


@pytest.mark.sweep  # a cluster takes as long as hundreds of other tests
def test_the_ray_command_trains_on_two_workers_and_does_not_repeat_a_wrong_configuration(tmp_path: Path) -> None:
    write_archive(tmp_path)
    program, example, *arguments = command_of("ray_train.py")
    assert (program, arguments[:2]) == ("python", ["--workers", "2"])
    command = [sys.executable, str(ROOT / example), *arguments]
    done = start([*command, *SMALL], tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    assert len(list((tmp_path / "runs" / "igpt").rglob("*.ckpt"))) >= 1
    wrong = start([*command, *SMALL, "--name", "wrong", "backbone.num_layers=abc"], tmp_path)
    assert wrong.returncode == 1
    assert "Error: backbone.num_layers=abc is invalid: give a whole number." in wrong.stderr.splitlines()
    assert (wrong.stdout + wrong.stderr).count("Started training worker group") == 1
