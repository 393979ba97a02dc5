"""Preparing a dataset with one worker, from the page cache, in MB/s. Option: command, a program of this Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.candidates.files import MEDIA
from benchmarks.candidates.task import Task

CAPTIONING = (
    "--sample-type",
    "CaptioningSample",
    "--field-map",
    json.dumps({"image": ",".join(MEDIA), "caption": "txt"}),
)


def measure(task: Task) -> dict[str, float]:
    """Returns MB/s of shards, and seconds of CPU over all processes per GB."""
    command = str(task.options["command"])
    with tempfile.TemporaryDirectory() as folder:
        total = 0
        for shard in task.shards:
            Path(shard).read_bytes()  # into the page cache
            os.symlink(shard, Path(folder) / Path(shard).name)
            total += Path(shard).stat().st_size
        cpu_before, began = os.times(), time.perf_counter()
        prepare(command, Path(folder), "--num-workers", "1")
        seconds, cpu = time.perf_counter() - began, os.times()
    spent = cpu.children_user + cpu.children_system - cpu_before.children_user - cpu_before.children_system
    return {"megabytes_per_second": total / seconds / 1e6, "cpu_seconds_per_gigabyte": spent / (total / 1e9)}


def prepare(command: str, folder: Path, *options: str) -> None:
    """Prepares a folder of shards as a captioning dataset with only a train part.

    Args:
        command: "energon-dali" or "energon".
        folder: The folder, in which files are made.
        options: Further options of the command.

    Raises:
        RuntimeError: The command failed; the message holds what it said.
    """
    arguments = ("--non-interactive", "--split-ratio", "1,0,0", "--force-overwrite", *CAPTIONING, *options)
    run_command(command, "prepare", folder, *arguments)


def run_command(command: str, name: str, folder: Path, *options: str) -> None:
    """Runs a command on a folder of shards.

    Args:
        command: "energon-dali" or "energon".
        name: Of the subcommand.
        folder: The folder.
        options: Options of the command.

    Raises:
        RuntimeError: The command failed; the message holds what it said.
    """
    program = Path(sys.executable).parent / command
    # A checkout that is not installed has no program.
    installed = command != "energon-dali" or program.exists()
    started = [str(program)] if installed else [sys.executable, "-m", "energon_dali"]
    done = subprocess.run([*started, name, str(folder), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} {name} failed:\n{done.stdout}\n{done.stderr}")
