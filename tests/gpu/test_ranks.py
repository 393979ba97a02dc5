"""All GPUs of the host at once, as ranks of one job with NCCL; two ranks with gloo in a dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.observations import Observations
from tests.gpu.where import ROOT, Where
from tests.loader.dataset_folder import captioning_dataset

pytestmark = [pytest.mark.costly_dry_run, pytest.mark.timeout(400)]
PROGRAM = ROOT / "examples" / "eight_gpus" / "train.py"
STEPS, BATCH = 21, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("ranks") / "captions", 32, 8)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("ddp", ()), ("ddp", ("--decode-process",)), ("fsdp", ())],
    ids=["ddp", "ddp, decode process", "fsdp"],
)
def test_all_ranks_train_together(
    where: Where, observe: Observations, strategy: str, options: tuple[str, ...], folder: Path
) -> None:
    """NCCL's kernels and the decoders share every GPU. Each rank's batches are on its own, and all ranks end."""
    count = torch.cuda.device_count() if where.kind == "gpu" else 2
    train(where.kind, count, folder, observe, "--strategy", strategy, *options)


def test_all_ranks_train_with_graphs(folder: Path, request: pytest.FixtureRequest) -> None:
    """`torch.compile(mode="reduce-overhead")` captures a graph in the first steps, next to the decode process."""
    observe = Observations("gpu", request.node.name)
    train("gpu", torch.cuda.device_count(), folder, observe, "--compile", "reduce-overhead")


def train(device: str, count: int, folder: Path, observe: Observations, *options: str) -> None:
    """Runs the example with one rank per GPU, and checks what its ranks say."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    size = ["--steps", str(STEPS), "--batch-size", str(BATCH), "--workers", "1"]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), "--device", device, *size, *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    observe(ranks=ranks)
    assert [one["rank"] for one in ranks] == list(range(count))
    own = [f"cuda:{number}" for number in range(count)] if device == "gpu" else ["cpu"] * count
    assert [one["device"] for one in ranks] == own
    for one in ranks:
        assert one["keys"]
        assert one["routes"].get(f"dali-{device}", 0) > 0
        assert set(one["routes"]) <= {f"dali-{device}", "dali-host", "pil"}
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0]
