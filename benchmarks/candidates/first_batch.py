"""Time from `iter(loader)` to the first batch, in a process that has imported torch, and built the loader.

Options: those of energon_style, and start_method (of our loader). Each run is a process of its own, so that nothing is
left from the batch before.
"""

from __future__ import annotations

import time

from benchmarks.candidates.energon_style import open_loader
from benchmarks.candidates.process_tree import tree_cpu_seconds
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    """Returns seconds for the first batch, the CPU seconds of all processes until then, and seconds for the loader."""
    began = time.perf_counter()
    loader = open_loader(task)
    opened, cpu_before = time.perf_counter(), tree_cpu_seconds()
    next(iter(loader))
    arrived = time.perf_counter()
    return {
        "first_batch_seconds": arrived - opened,
        "first_batch_cpu_seconds": tree_cpu_seconds() - cpu_before,
        "open_seconds": opened - began,
    }
