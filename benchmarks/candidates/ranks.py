"""All GPUs of a host at once: one process of another program per GPU, started as ranks of one node, timed together.

Options: inner (the program), and those of that program. Without a GPU there are two ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.candidates.task import LEFT_OUT, RESULT, LeftOutError, Task

_RANKS_OF_DRY_RUN = 2
_MEETING_SECONDS = 120.0


def measure(task: Task) -> dict[str, float]:
    """Returns the numbers of all ranks: rates and cores added up, and the slowest rank's share of the mean rate."""
    gpus = visible_gpus() if task.device == "gpu" else [""] * _RANKS_OF_DRY_RUN
    with tempfile.TemporaryDirectory() as meeting:
        processes = [_start(task, rank, gpus, meeting) for rank in range(len(gpus))]
        numbers = [_finish(process) for process in processes]
    rates = [one["samples_per_second"] for one in numbers]
    found = {
        "samples_per_second": sum(rates),
        "cpu_cores": sum(one["cpu_cores"] for one in numbers),
        "first_batch_seconds": max(one["first_batch_seconds"] for one in numbers),
        "slowest_rank_share": min(rates) / statistics.fmean(rates),
        "ranks": len(numbers),
    }
    found["cpu_milliseconds_per_sample"] = 1e3 * found["cpu_cores"] / found["samples_per_second"]
    return found | {name: value for name, value in numbers[0].items() if name == "samples_checked"}


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; does not initialise CUDA."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [part.strip() for part in named.split(",") if part.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def meet(task: Task) -> None:
    """Waits until all ranks have their first batch; does nothing for a program that runs alone.

    Raises:
        TimeoutError: Another rank has none after two minutes.
    """
    if "meeting" not in task.options:
        return
    folder = Path(str(task.options["meeting"]))
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + _MEETING_SECONDS
    while len(list(folder.iterdir())) < int(task.options["ranks"]):
        if time.monotonic() > end:
            raise TimeoutError(f"only {len(list(folder.iterdir()))} of {task.options['ranks']} ranks have a batch")
        time.sleep(0.005)


def _start(task: Task, rank: int, gpus: list[str], meeting: str) -> subprocess.Popen[str]:
    options = {name: value for name, value in task.options.items() if name != "inner"}
    task = dataclasses.replace(
        task,
        program=str(task.options["inner"]),
        action=task.action if rank == 0 else "time",  # one of them is checked
        trains=False,
        options={**options, "meeting": meeting, "ranks": len(gpus)},
    )
    variables = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(gpus))}
    if gpus[rank]:
        variables["CUDA_VISIBLE_DEVICES"] = gpus[rank]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.candidates", task.to_json()],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> dict[str, float]:
    """Returns what a rank measured.

    Raises:
        LeftOutError: The program cannot take part.
        RuntimeError: It failed.
    """
    printed, _ = process.communicate()
    for line in reversed(printed.splitlines()):
        if line.startswith(RESULT):
            numbers: dict[str, float] = json.loads(line.removeprefix(RESULT))["numbers"]
            return numbers
        if line.startswith(LEFT_OUT):
            raise LeftOutError(line.removeprefix(LEFT_OUT))
    raise RuntimeError(f"A rank ended with {process.returncode} and no result.")
