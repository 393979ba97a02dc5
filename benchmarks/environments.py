"""Runs a candidate in its own process tree, with the Python of its environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.candidates.task import LEFT_OUT, RESULT, Task
from benchmarks.workload import Environment

ROOT = Path(__file__).resolve().parent.parent
OTHER_PYTHONS = {
    "energon": ("ENERGON_PYTHON", ROOT / ".venv-energon" / "bin" / "python"),
    "peers": ("PEERS_PYTHON", ROOT / ".venv-peers" / "bin" / "python"),
}
"""Variable and default of the Python of each environment."""


class CandidateError(Exception):
    """A candidate failed; the message has the end of its output."""


class AbsentError(Exception):
    """A candidate cannot take part on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one run of a candidate."""

    numbers: dict[str, float]
    """Metric to value."""
    versions: dict[str, str]
    """Package to version, in the candidate's environment."""


def python_of(environment: Environment) -> Path | None:
    """Returns the interpreter of an environment, None if it does not exist.

    The environment variable ENERGON_PYTHON names another Python that has megatron-energon, PEERS_PYTHON one that has
    the other loaders.
    """
    if environment == "own":
        return Path(sys.executable)
    variable, default = OTHER_PYTHONS[environment]
    python = Path(os.environ.get(variable) or default)
    return python if python.exists() else None


def run_candidate(
    task: Task,
    python: Path,
    *,
    timeout_seconds: float = 300,
    root: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Returns the numbers of one run. All processes of the candidate are ended.

    Args:
        task: What to do.
        python: Interpreter to do it with.
        timeout_seconds: After that it counts as failed.
        root: Checkout whose package and programs run; None is this one.
        variables: Environment variables to add.

    Raises:
        AbsentError: It cannot take part here.
        CandidateError: It failed or took too long.
    """
    command = [str(python), "-m", "benchmarks.candidates", task.to_json()]
    # Packages may be only on PYTHONPATH, as on a host without an index; they belong to this Python alone.
    inherited = os.environ.get("PYTHONPATH", "") if python == python_of("own") else ""
    path = os.pathsep.join([str(root or ROOT), *filter(None, [inherited])])
    # One thread per process for torch's own operations: candidates with worker processes are slower with more.
    environment = {**os.environ, **(variables or {}), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            command, cwd=root or ROOT, env=environment, stdout=stdout, stderr=stderr, text=True, start_new_session=True
        )
        try:
            code = process.wait(timeout_seconds)
            ended = f"ended with {code}"
        except subprocess.TimeoutExpired:
            ended = f"took longer than {timeout_seconds} s"
        finally:
            _end_tree(process)
        lines = _written(stdout).splitlines()
        for line in reversed(lines):
            if line.startswith(RESULT):
                return Outcome(**json.loads(line.removeprefix(RESULT)))
            if line.startswith(LEFT_OUT):
                raise AbsentError(line.removeprefix(LEFT_OUT))
        raise CandidateError(f"{task.program} {ended}:\n{_written(stderr)[-3000:]}")


def _written(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _end_tree(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
