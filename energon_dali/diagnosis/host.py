"""The facts of a machine that its diagnosis asks for, and how one thing that was checked is reported."""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from energon_dali.host_cores import CoreShare, share_of_rank

Limit = Literal["nofile", "memlock"]
State = Literal["ok", "missing", "broken"]
Need = Literal["always", "gpu", "optional"]

_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a probe."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Plain values; empty if it failed."""
    error: str = ""
    """Why it failed, in one line; "" if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a diagnosis: what was checked, what was found, and what to do about it."""

    name: str
    """What was checked."""
    state: State
    """"missing": it is not there. "broken": it is there but does not work."""
    found: str
    """Version, number or error, in one line."""
    needed_for: str
    """What does not work without it."""
    need: Need = "optional"
    """"always": nothing works without it. "gpu": the GPU path does not. "optional": something is slower or missing."""
    remedy: str = ""
    """What to do if the state is not "ok"."""

    def fails(self, *, gpu_wanted: bool) -> bool:
        """Returns whether this keeps the wanted path from working.

        Args:
            gpu_wanted: Whether the GPU path is wanted.
        """
        return self.state != "ok" and (self.need == "always" or (self.need == "gpu" and gpu_wanted))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)


class Host:
    """The facts of the machine that this process runs on. Tests derive from it to make facts up.

    Args:
        timeout_seconds: A probe that takes longer counts as failed.
    """

    def __init__(self, timeout_seconds: float = 120) -> None:
        self._timeout_seconds = timeout_seconds

    def version(self, package: str) -> str | None:
        """Returns the version of an installed package, None if it is not installed."""
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def requirements(self, package: str) -> list[str]:
        """Returns the requirements in the metadata of an installed package."""
        try:
            return list(importlib.metadata.requires(package) or ())
        except importlib.metadata.PackageNotFoundError:
            return []

    def probe(self, name: str, *words: str) -> Finding:
        """Runs a function of `probes` in its own process, because it may crash, and returns what it found."""
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
        """Returns the text of a file, None if it cannot be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def shows_gpu(self) -> bool:
        """Returns whether the machine shows a GPU to this process."""
        from energon_dali.decode.dali.runtime.device import sees_gpu

        return sees_gpu()

    def limit(self, name: Limit) -> int:
        """Returns a soft limit of this process; -1 if there is none."""
        soft, _ = resource.getrlimit(_LIMITS[name])
        return -1 if soft == resource.RLIM_INFINITY else soft

    def free_bytes(self, path: str) -> int | None:
        """Returns the free bytes of a file system, None if it does not exist."""
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None

    def share(self) -> CoreShare:
        """Returns the cores of a rank that is started as this process was."""
        return share_of_rank()

    def lacks_to_compile(self) -> list[str]:
        """Returns what Triton's compiler lacks: "a C compiler", "Python.h"."""
        lacking = []
        if not (os.environ.get("CC") or any(shutil.which(name) for name in ("cc", "gcc", "clang"))):
            lacking.append("a C compiler")
        if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            lacking.append("Python.h")
        return lacking

    def cores(self) -> tuple[int, int]:
        """Returns the number of CPU cores that this process may use, and the number of the machine."""
        return len(os.sched_getaffinity(0)), os.cpu_count() or 1
