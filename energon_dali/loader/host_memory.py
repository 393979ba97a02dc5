"""How much memory this machine, or the container that this process is in, has left."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SHORT = 0.05
"""Share of the memory that must be left: with less, the system begins to drop files that are read again at once."""


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """Memory that processes may still take."""

    available_bytes: int
    """How much, without what the system would take from other processes."""
    total_bytes: int
    """How much there is in all."""

    @property
    def is_short(self) -> bool:
        """Whether so little is left that more processes had better not start."""
        return self.available_bytes < _SHORT * self.total_bytes


def memory_left() -> MemoryLeft | None:
    """Returns the memory that is left to this process; None if the system does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
        host = MemoryLeft(1024 * kib["MemAvailable"], 1024 * kib["MemTotal"])
        container = _left_in_container()
        if container is None or container.available_bytes > host.available_bytes:
            return host
        return container
    return None


def _left_in_container() -> MemoryLeft | None:
    """Returns what the limit of this process's cgroup (version 2) leaves; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        lines = (line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = next((int(words[1]) for words in lines if words[0] == "inactive_file"), 0)
        return MemoryLeft(max(0, limit - used + cached), limit)
    return None
