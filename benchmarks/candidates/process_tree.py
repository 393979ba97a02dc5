"""CPU time and memory of this process and all its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds() -> float:
    """Returns the seconds of processor time of this process and its descendants, including those that ended.

    Steps of 10 ms per process. A descendant whose parent ended before it is not counted.
    """
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the name, which may contain spaces and parentheses: state, parent, ... (proc(5), stat).
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        process = int(entry.name)
        parents[process] = int(fields[1])
        seconds[process] = sum(int(value) for value in fields[11:15]) * _TICK_SECONDS
    return sum(spent for process, spent in seconds.items() if _descends(process, os.getpid(), parents))


def tree_memory_mib() -> float:
    """Returns the memory of this process and its descendants in MiB; pages that processes share count once (PSS)."""
    import psutil

    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
    return total / 2**20


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        process = parents.get(process, 0)
    return False
