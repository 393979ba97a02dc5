"""The checks of `energon-dali doctor`: what a machine has and lacks for this package.

They are shown as a table and as plain values, with whether the wanted path works.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from energon_dali.diagnosis.cpu_path import check_cpu_path, check_limits
from energon_dali.diagnosis.gpu_path import check_gpu_path
from energon_dali.diagnosis.host import Check, Finding, Host

__all__ = ["Check", "Diagnosis", "Finding", "Host", "WantedDevice", "diagnose"]

WantedDevice = Literal["auto", "cpu", "gpu"]

_FOUND_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks of a machine."""

    wanted: WantedDevice
    """"cpu": the GPU was not checked. "gpu": it must work. "auto": it was checked but need not work."""
    cpu_checks: tuple[Check, ...]
    """Checks of the CPU path. Here and below, a later check may fail because of an earlier one."""
    gpu_checks: tuple[Check, ...]
    """Checks of the GPU path; none if it was not checked."""
    limit_checks: tuple[Check, ...]
    """Checks of the limits of the machine."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in reading order."""
        return (*self.cpu_checks, *self.gpu_checks, *self.limit_checks)

    @property
    def works(self) -> bool:
        """Whether the wanted path works."""
        return not any(check.fails(gpu_wanted=self.wanted == "gpu") for check in self.checks)

    def lines(self) -> Iterator[str]:
        """Yields the lines of a table of all checks, then what to do."""
        rows = [("", "what", "found", "needed for")]
        rows += [
            (check.state, check.name, textwrap.shorten(check.found, _FOUND_WIDTH, placeholder=" ..."), check.needed_for)
            for check in self.checks
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            aligned = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
            yield "  ".join([*aligned, row[3]]).rstrip()
        to_do = [check for check in self._wanted_checks() if check.state != "ok" and check.remedy]
        if to_do:
            yield ""
            yield "What to do:"
        for check in to_do:
            yield f"  {check.name} ({check.state}): {check.found}"
            yield f"    {check.remedy}"
        yield ""
        path = {"auto": "The CPU path", "cpu": "The CPU path", "gpu": "The GPU path"}[self.wanted]
        yield f"{path} {'works' if self.works else 'does not work'} here."

    def _wanted_checks(self) -> tuple[Check, ...]:
        """Returns the checks whose remedies to show: those of the GPU path are left out where there is no GPU."""
        first = self.gpu_checks[:1]
        if self.wanted == "auto" and first and first[0].name == "GPU" and first[0].state == "missing":
            return (*self.cpu_checks, *first, *self.limit_checks)
        return self.checks

    def to_json(self) -> dict[str, Any]:
        """Returns the diagnosis as plain values."""
        return {"wanted": self.wanted, "works": self.works, "checks": [check.to_json() for check in self.checks]}


def diagnose(host: Host, wanted: WantedDevice = "auto") -> Diagnosis:
    """Checks a machine. Each trial runs in its own process; all take some seconds.

    Args:
        host: The machine.
        wanted: Which path has to work; "cpu" does not check the GPU.
    """
    gpu = () if wanted == "cpu" else tuple(check_gpu_path(host))
    return Diagnosis(wanted, tuple(check_cpu_path(host)), gpu, tuple(check_limits(host)))
