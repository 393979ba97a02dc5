"""All checks of a machine, as a table and as plain values, and whether the path that is wanted works."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from energon_dali.diagnosis.check import Check
from energon_dali.diagnosis.cpu_path import check_cpu_path
from energon_dali.diagnosis.gpu_path import check_gpu_path
from energon_dali.diagnosis.host import Host
from energon_dali.diagnosis.limits import check_limits

WantedDevice = Literal["auto", "cpu", "gpu"]

_FOUND_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found on a machine."""

    wanted: WantedDevice
    """"cpu": the GPU was not looked at. "gpu": it has to work. "auto": it was looked at, and need not work."""
    cpu_checks: tuple[Check, ...]
    """What works without a GPU; here and below a later check may fail because of an earlier one."""
    gpu_checks: tuple[Check, ...]
    """What the GPU path needs; none if it was not looked at."""
    limit_checks: tuple[Check, ...]
    """What the machine allows."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """All of them, in the order in which they are to be read."""
        return (*self.cpu_checks, *self.gpu_checks, *self.limit_checks)

    @property
    def works(self) -> bool:
        """Whether the path that is wanted works."""
        return not any(check.fails(gpu_wanted=self.wanted == "gpu") for check in self.checks)

    def lines(self) -> Iterator[str]:
        """Yields a table of what was found, then what to do."""
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
        """Returns the checks that something may be done about: where there is no GPU, nothing for it is missed."""
        first = self.gpu_checks[:1]
        if self.wanted == "auto" and first and first[0].name == "GPU" and first[0].state == "missing":
            return (*self.cpu_checks, *first, *self.limit_checks)
        return self.checks

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as plain values."""
        return {"wanted": self.wanted, "works": self.works, "checks": [check.to_json() for check in self.checks]}


def diagnose(host: Host, wanted: WantedDevice = "auto") -> Diagnosis:
    """Returns what a machine has and lacks. Tries it out in processes of their own; takes some seconds.

    Args:
        host: Where the facts come from.
        wanted: Which path has to work; "cpu" does not look at the GPU.
    """
    gpu = () if wanted == "cpu" else tuple(check_gpu_path(host))
    return Diagnosis(wanted, tuple(check_cpu_path(host)), gpu, tuple(check_limits(host)))
