"""Checks of what the machine allows: cores, open files, memory."""

from __future__ import annotations

from collections.abc import Iterator

from energon_dali.diagnosis.check import Check
from energon_dali.diagnosis.host import Host

FEW_FILES = 4096
"""Shards and blocks hold descriptors: with fewer, jobs of many shards and workers meet the limit."""
LITTLE_SHARED_BYTES = 1 << 30


def check_limits(host: Host) -> Iterator[Check]:
    """Yields the checks of limits; none of them keeps the package from working.

    Args:
        host: Where the facts come from.
    """
    allowed, present = host.cores()
    quota = _quota(host)
    few = quota is not None and quota < allowed
    yield Check(
        name="CPU cores",
        state="ok",
        needed_for="workers: no more of them than cores",
        found=f"{allowed} of {present}" + (f", {quota:g} by the quota of the container" if few else ""),
    )
    files = host.limit("nofile")
    yield Check(
        name="open files",
        state="ok" if files < 0 or files >= FEW_FILES else "broken",
        found=_shown(files),
        needed_for="shards, and blocks on their way from workers",
        remedy=f"ulimit -n 65536 (containers: --ulimit nofile=65536); {FEW_FILES} are enough for most jobs",
    )
    locked = host.limit("memlock")
    yield Check(
        name="locked memory",
        state="ok",
        found="unlimited" if locked < 0 else f"{locked / 2**20:.0f} MiB",
        needed_for="RDMA; nothing of this package counts against it",
    )
    shared = host.free_bytes("/dev/shm")
    little = shared is not None and shared < LITTLE_SHARED_BYTES
    yield Check(
        name="/dev/shm",
        state="missing" if shared is None else "broken" if little else "ok",
        found="not there" if shared is None else f"{shared / 2**30:.1f} GiB free",
        needed_for="NCCL, other loaders; blocks of this one do not lie there",
        remedy="Start containers with --shm-size=8g or --ipc=host if NCCL or a torch DataLoader runs beside this",
    )


def _quota(host: Host) -> float | None:
    """Returns the cores that the control group allows (cgroup v2, v1), None where it bounds nothing."""
    words = (host.text("/sys/fs/cgroup/cpu.max") or "").split()
    if not words:
        words = [host.text(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    try:
        quota, period = (float(word) for word in words[:2])
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 < period else None


def _shown(number: int) -> str:
    return "unlimited" if number < 0 else str(number)
