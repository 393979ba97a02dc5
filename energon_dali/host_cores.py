"""The CPU cores of a rank, and how its threads that decode divide them: the one place that decides both.

Ranks of a node share its cores. `LOCAL_WORLD_SIZE` says how many there are, and the cgroup how many cores they have
together: a container of 32 cores on a host of 128 has 32. Where a launcher binds each rank to cores of its own, those
are its share.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

_MOST_ON_CPU = 32
"""Threads of a pipeline on the CPU: more of them wait for each other."""
_MOST_IMAGES = 8
"""Threads of a pipeline that feeds a GPU with images: the JPEG engine and CUDA cores do most of the work."""
_MOST_VIDEOS = 16
"""Threads of a pipeline that feeds a GPU with videos: each waits for one hardware decoder, of which an H100 has 7."""
_MOST_ON_HOST = 16
"""Threads of a GPU's pipeline that decode themselves: PNG, BMP and PNM."""
_FALLBACKS = (2, 8)
"""Fewest and most threads for what no pipeline takes."""


@dataclass(frozen=True, slots=True)
class CoreShare:
    """The cores of a rank."""

    cores: int
    """How many it may use, at least 1."""
    limited_by: str
    """What limits them, for a person: "8 ranks share 128 cores"."""


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """How many threads of a rank decode what. On a GPU, images and videos together have one thread per core.

    Few blocks have all kinds of media, and threads without work wait. So what the CPU decodes may take more than what
    is left.
    """

    images: int
    """Of the pipeline of images."""
    on_host: int
    """Of a GPU's pipeline for the formats that its CPU threads decode."""
    videos: int
    """Of the pipeline of videos."""
    fallbacks: int
    """Of PIL, PyAV and front ends, for what no pipeline takes."""


def share_of_rank() -> CoreShare:
    """Returns the cores that this process, a rank, may use."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    of_node, why = max(bound, _cores_of_cgroup() or bound), "the cores of the host"
    if bound < (os.cpu_count() or bound):
        why = "the cores that this container or process may use"
    quota = _quota_of_cgroup()
    if quota is not None and quota < of_node:
        of_node, why = max(1, int(quota)), f"a CPU quota of {quota:g} cores"
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(said) if said.isdecimal() and int(said) else 1
    share = max(1, of_node // ranks)
    if bound < share:
        return CoreShare(bound, f"this process is bound to {bound} cores")
    return CoreShare(share, f"{ranks} ranks share {of_node} cores" if ranks > 1 else f"{why}: {of_node}")


def cores_per_rank() -> int:
    """Returns the number of cores that a rank may use, at least 1."""
    return share_of_rank().cores


def divide_cores(cores: int, *, gpu: bool) -> ThreadShares:
    """Returns how the threads of a rank divide its cores.

    Args:
        cores: Of the rank.
        gpu: Whether a GPU decodes. If not, images and videos may each take all cores.
    """
    least, most = _FALLBACKS
    fallbacks = min(most, max(least, cores // 4))
    if not gpu:
        all_cores = min(cores, _MOST_ON_CPU)
        return ThreadShares(all_cores, all_cores, all_cores, fallbacks)
    half = max(1, cores // 2)
    return ThreadShares(min(half, _MOST_IMAGES), min(cores, _MOST_ON_HOST), min(half, _MOST_VIDEOS), fallbacks)


def _own_folders(controller: str) -> list[Path]:
    """Returns the folders of this process's cgroup for a controller, innermost first; version 1 or 2."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        own = root / path.strip("/")
        return [folder for folder in (own, *own.parents) if folder == root or root in folder.parents]
    return []


def _read(folder: Path, *names: str) -> str | None:
    for name in names:
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return None


@functools.cache  # asked for every block
def _cores_of_cgroup() -> int | None:
    """Returns the number of cores of the innermost cgroup that names some; None if none does."""
    for folder in _own_folders("cpuset"):
        said = _read(folder, "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        try:
            count = sum(int(last or first) - int(first) + 1 for first, _, last in _ranges(said or ""))
        except ValueError:
            continue
        if count:
            return count
    return None


def _ranges(text: str) -> list[tuple[str, str, str]]:
    return [part.partition("-") for part in text.split(",") if part]


@functools.cache
def _quota_of_cgroup() -> float | None:
    """Returns the smallest CPU quota of this process's cgroups, in cores; None without one."""
    quotas = []
    for folder in _own_folders("cpu"):
        both = (_read(folder, "cpu.max") or "").split()
        if not both:
            both = [_read(folder, "cpu.cfs_quota_us") or "", _read(folder, "cpu.cfs_period_us") or ""]
        if len(both) == 2 and all(each.isdecimal() for each in both) and int(both[1]):
            quotas.append(int(both[0]) / int(both[1]))
    return min(quotas, default=None)
