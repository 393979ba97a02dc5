"""Seconds that importing a library takes in addition to torch. Option: library."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.candidates.task import Task

SCRIPT = """
import sys, time
import torch
import torch.utils.data
import torch.distributed
began = time.perf_counter()
import {library} as library
for name in library.__all__:
    getattr(library, name)
print(time.perf_counter() - began)
"""


def measure(task: Task) -> dict[str, float]:
    """Returns the seconds for the library with every public name used."""
    script = SCRIPT.format(library=task.options["library"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {"import_seconds": float(done.stdout.splitlines()[-1])}
