"""Ranks of a job with global batches that are lost and come back: no step changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.loader.elastic_job import COMES_BACK, GLOBAL_BATCH, LEAVES, RANKS, STEPS_OF_REPLICAS
from tests.loader.test_global_batches import Job, Steps, write_blend

pytestmark = pytest.mark.timeout(900)  # interpreters with torch, perhaps on a busy machine
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Steps:
    """The steps of one rank."""
    return Job(folder / "blend.yaml", 1, GLOBAL_BATCH, GLOBAL_BATCH).run(STEPS_OF_REPLICAS)[0]


def steps_seen(out: Path) -> Steps:
    """Returns the samples of each step; those of the last start count for a step that was begun several times."""
    found: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in out.glob("seen-*.jsonl"):
        start = int(file.name.split("-")[1])
        for line in file.read_text().splitlines():
            step, texts = json.loads(line)
            found[step][start] += texts
    return {step: sorted(by_start[max(by_start)]) for step, by_start in sorted(found.items())}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(is_so: Callable[[], Any], out: Path, seconds: float = 250) -> None:
    """Fails with what the agents wrote if something is not so after a time."""
    end = time.monotonic() + seconds
    while not is_so():
        logs = [log.read_text()[-4000:] for log in sorted(out.glob("*.log"))]
        assert time.monotonic() < end, "\n".join(logs)
        time.sleep(0.05)


@pytest.fixture
def agents(warm_python: str, folder: Path, tmp_path: Path) -> Any:
    """Starts agents of torchrun for two processes each, which find each other by a store of the first one."""
    port = free_port()
    # An agent looks through all imported modules whenever it records an event: minutes in `warm_python`.
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=3"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"]
    command += ["--rdzv-conf=last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=5"]
    command += ["--monitor-interval=0.1", "-m", "tests.loader.elastic_job", "torchrun", str(folder), str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": warm_python}
    variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or one that comes back waits for MASTER_ADDR (2.13)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        variables["AGENT"] = str(len(started))
        with (tmp_path / f"agent-{len(started)}.log").open("w") as log:
            started.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
        wait_until(lambda: is_open(port), tmp_path)
        return started[-1]

    yield start
    for number, agent in enumerate(started):
        kill(agent, number, tmp_path)


def kill(agent: subprocess.Popen[bytes], number: int, out: Path) -> None:
    """Kills an agent and its processes, as the loss of a machine does."""
    agent.kill()
    for file in out.glob(f"pid-{number}-*"):
        with suppress(ProcessLookupError):
            os.kill(int(file.name.rsplit("-", 1)[1]), signal.SIGKILL)
    agent.wait()


@pytest.mark.sweep  # the agents wait for each other
def test_an_agent_of_torchrun_is_killed_and_comes_back(
    folder: Path, undisturbed: Steps, tmp_path: Path, agents: Any
) -> None:
    first, second = agents(), agents()
    wait_until(lambda: list(tmp_path.glob(f"waiting-{LEAVES}-*")), tmp_path)
    kill(second, 1, tmp_path)
    wait_until(lambda: list(tmp_path.glob(f"waiting-{COMES_BACK}-*")), tmp_path)
    third = agents()
    wait_until(lambda: first.poll() is not None and third.poll() is not None, tmp_path)
    assert (first.returncode, third.returncode) == (0, 0)
    assert steps_seen(tmp_path) == {step: undisturbed[step] for step in range(len(RANKS))}


def test_replicas_die_join_and_leave_while_the_others_run(
    folder: Path, undisturbed: Steps, tmp_path: Path, warm_python: str
) -> None:
    """As with torchft: the replicas that are left form another group, and resize their loaders."""
    command = [warm_python, "-m", "tests.loader.elastic_job", "replicas", str(folder), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert steps_seen(tmp_path) == undisturbed
