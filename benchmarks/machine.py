"""Describes the machine and the versions of a result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

MEASURED_PATHS = (
    "energon_dali",
    "kernels",
    "benchmarks",
    "setup.py",
    "pyproject.toml",
    ":!benchmarks/results",
    ":!benchmarks/bench_all.py",
    ":!benchmarks/tables.py",
    ":!benchmarks/plot*.py",
    ":!benchmarks/remote/plot.py",
)
"""What a result depends on, as git's pathspecs: results themselves, charts and pages are not part of it."""


def describe_machine() -> dict[str, Any]:
    """Returns the processor, its cores, the memory, the system and the GPUs, as plain values."""
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "gpus": _describe_gpus(),
    }


def describe_versions() -> dict[str, str]:
    """Returns the version of Python and of every package of this environment; for energon_dali it is the commit."""
    packages = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    packages.pop("energon-dali", None)
    return {"python": platform.python_version(), **dict(sorted(packages.items(), key=lambda one: one[0].lower()))}


def commit(root: Path) -> str:
    """Returns the commit of a checkout, followed by "+" if measured files differ from it; "" outside a checkout.

    A copy of a checkout may hold it in a file COMMIT, as `benchmarks/gpu.sh` makes one.
    """
    copied = root / "COMMIT"
    if copied.is_file():
        return copied.read_text(encoding="utf-8").strip()
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", *MEASURED_PATHS], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _describe_gpus() -> list[str]:
    """Returns name, memory and driver of each GPU from nvidia-smi; empty without it."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


def _first_value(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
