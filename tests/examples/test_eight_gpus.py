"""The example for hosts with eight GPUs: its compose file, its Slurm script, and the commands in both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.loader.dataset_folder import captioning_dataset
from tests.test_containers import environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "eight_gpus"
PROGRAM = FOLDER / "train.py"
SLURM = FOLDER / "train.slurm"


def services() -> dict[str, Any]:
    """Returns the services of the compose file, with variables replaced by their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (FOLDER / "compose.yaml").read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def command_of_compose() -> list[str]:
    """Returns the command of the service that trains, as it is on the host."""
    train = services()["train"]
    mounted = next(volume for volume in train["volumes"] if volume.startswith(".:"))
    inside = mounted.split(":")[1]
    return [str(part).replace(inside, str(FOLDER)) for part in (*train["entrypoint"], *train["command"])]


@pytest.mark.parametrize("name", ["doctor", "suite", "train"])
def test_services_have_all_gpus_with_video_and_room_for_shared_memory(name: str) -> None:
    service = services()[name]
    (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["driver"], gpus["count"]) == ("nvidia", "all")
    assert {"gpu", "compute", "utility", "video"} == set(gpus["capabilities"])
    ours = service["environment"]["NVIDIA_DRIVER_CAPABILITIES"]
    assert ours == environment("Dockerfile")["NVIDIA_DRIVER_CAPABILITIES"]
    assert service["ipc"] == "host"
    assert (FOLDER / service["build"] / "Dockerfile").is_file()


def test_doctor_is_the_command_of_the_images_entry_point() -> None:
    from click.testing import CliRunner

    from energon_dali.cli.main import main

    name, *options = services()["doctor"]["command"]
    done = CliRunner().invoke(main, [name, *options, "--help"])
    assert done.exit_code == 0


def test_the_suite_runs_from_a_checkout_that_is_mounted() -> None:
    suite = services()["suite"]
    assert f"../..:{suite['working_dir']}:ro" in suite["volumes"]
    (command,) = suite["command"]
    assert suite["entrypoint"] == ["bash", "-c"]
    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    words = command.replace("&&", " ").split()
    for path in ("constraints-ci.txt", "benchmarks/requirements-gpu.txt", "benchmarks/gpu.sh"):
        assert path in words
        assert (ROOT / path).is_file()
    assert os.access(ROOT / "benchmarks" / "gpu.sh", os.X_OK)
    results = words[words.index("benchmarks/gpu.sh") + 1]
    assert any(volume.endswith(f":{results}") for volume in suite["volumes"])


def run_slurm(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a Slurm whose commands only print."""
    for name, body in {"scontrol": 'echo "node1\nnode2"', "srun": 'printf "%s\\n" "$@"'}.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SLURM), *arguments], env={"PATH": path, **variables}, capture_output=True, text=True, check=False
    )


def test_the_slurm_script_starts_a_rank_per_gpu_of_every_node(tmp_path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(SLURM)], check=False).returncode == 0
    wanted = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SLURM.read_text(), re.MULTILINE))
    assert (wanted["ntasks-per-node"], wanted["gpus-per-node"]) == ("1", "8")
    variables = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(ROOT),
    }
    done = run_slurm(tmp_path, "/data/with space", "--strategy", "fsdp", **variables)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[1:] == [
        *("torchrun", "--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "node1:29500", "--rdzv-id", "7"),
        *(str(PROGRAM), "/data/with space", "--strategy", "fsdp"),
    ]


def test_the_slurm_script_says_what_it_lacks(tmp_path: Path) -> None:
    assert "Give the folder of the prepared dataset." in run_slurm(tmp_path).stderr
    assert "This script runs under Slurm" in run_slurm(tmp_path, "/data").stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed (apt install shellcheck)")
@pytest.mark.parametrize("script", [SLURM, ROOT / "benchmarks" / "gpu.sh"], ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    done = subprocess.run(
        ["shellcheck", "--severity=warning", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.sweep
@pytest.mark.timeout(400)  # three interpreters with torch, perhaps on a busy machine
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_command_of_the_compose_file_trains_with_two_ranks_on_the_cpu(
    strategy: str, tmp_path: Path, warm_python: str
) -> None:
    captioning_dataset(tmp_path / "captions", 32, 2)
    torchrun, *command = command_of_compose()
    assert torchrun == "torchrun"
    replaced = {"8": "2", "/data": str(tmp_path / "captions"), "ddp": strategy}
    arguments = [replaced.get(part, part) for part in command]
    few = ["--device", "cpu", "--steps", "11", "--batch-size", "4", "--workers", "1"]
    done = subprocess.run(
        [warm_python, "-m", "torch.distributed.run", *arguments, *few],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_EXEC": warm_python, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["rank"] for one in ranks] == [0, 1]
    assert all(one["keys"] == 32 for one in ranks)  # of 64, in 11 batches of 4: its own
    assert "step 10: loss" in done.stdout
