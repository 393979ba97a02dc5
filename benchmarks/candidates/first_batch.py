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
    """Returns seconds for the first batch, for the loader, and for both, and CPU seconds of all processes."""
    began, cpu_began = time.perf_counter(), tree_cpu_seconds()
    loader = open_loader(task)
    opened, cpu_before = time.perf_counter(), tree_cpu_seconds()
    next(iter(loader))
    arrived, cpu_after = time.perf_counter(), tree_cpu_seconds()
    return {
        "first_batch_seconds": arrived - opened,
        "first_batch_cpu_seconds": cpu_after - cpu_before,
        "open_seconds": opened - began,
        "start_seconds": arrived - began,
        "start_cpu_seconds": cpu_after - cpu_began,
    }
