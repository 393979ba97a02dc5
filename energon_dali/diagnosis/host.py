"""Where a diagnosis gets its facts from: this machine, or what a test makes up."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Limit = Literal["nofile", "memlock"]

_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe gave."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Plain values; empty if it failed."""
    error: str = ""
    """Why it failed, in one line; "" if it did not."""


class Host(Protocol):
    """The facts of a machine."""

    def version(self, package: str) -> str | None:
        """Returns the version of an installed package, None if it is not installed."""

    def requirements(self, package: str) -> list[str]:
        """Returns what an installed package requires, as its metadata says it."""

    def probe(self, name: str, *words: str) -> Finding:
        """Returns what a function of `probes` finds, run in a process of its own: it may crash."""

    def text(self, path: str) -> str | None:
        """Returns the text of a file, None if it cannot be read."""

    def has_gpu_in_sight(self) -> bool:
        """Returns whether the machine shows a GPU to this process."""

    def limit(self, name: Limit) -> int:
        """Returns the soft limit of this process; -1 where there is none."""

    def free_bytes(self, path: str) -> int | None:
        """Returns what is free on a file system, None if it is not there."""

    def cores(self) -> tuple[int, int]:
        """Returns the processor cores that this process may use, and those of the machine."""


class ThisHost:
    """The machine that this process runs on.

    Args:
        timeout_seconds: After that a probe counts as failed.
    """

    def __init__(self, timeout_seconds: float = 120) -> None:
        self._timeout_seconds = timeout_seconds

    def version(self, package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def requirements(self, package: str) -> list[str]:
        try:
            return list(importlib.metadata.requires(package) or ())
        except importlib.metadata.PackageNotFoundError:
            return []

    def probe(self, name: str, *words: str) -> Finding:
        command = [sys.executable, "-m", "energon_dali.diagnosis.probes", name, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=self._timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return Finding(error=f"no answer within {self._timeout_seconds:g} s")
        except OSError as error:
            return Finding(error=str(error))
        if done.returncode < 0:
            return Finding(error=f"the process was ended by {signal.Signals(-done.returncode).name}")
        try:
            facts = json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            said = done.stderr.strip().splitlines()
            return Finding(error=said[-1] if said else f"the process ended with {done.returncode} and said nothing")
        return Finding(error=facts["error"]) if "error" in facts else Finding(facts)

    def text(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def has_gpu_in_sight(self) -> bool:
        from energon_dali.decode.dali.runtime.device import sees_gpu

        return sees_gpu()

    def limit(self, name: Limit) -> int:
        soft, _ = resource.getrlimit(_LIMITS[name])
        return -1 if soft == resource.RLIM_INFINITY else soft

    def free_bytes(self, path: str) -> int | None:
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None

    def cores(self) -> tuple[int, int]:
        return len(os.sched_getaffinity(0)), os.cpu_count() or 1
