"""One line of a diagnosis: what was looked at, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "missing", "broken"]
Need = Literal["always", "gpu", "optional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found of one thing."""

    name: str
    """What was looked at."""
    state: State
    """"missing": it is not there. "broken": it is there and does not work."""
    found: str
    """Version, number or error, in one line."""
    needed_for: str
    """What does not work without it."""
    need: Need = "optional"
    """"always": nothing works without it. "gpu": the GPU path does not. "optional": something is slower or lacking."""
    remedy: str = ""
    """What to do, where the state is not "ok"."""

    def fails(self, *, gpu_wanted: bool) -> bool:
        """Returns whether the path that is wanted does not work because of this.

        Args:
            gpu_wanted: Whether the GPU path is.
        """
        return self.state != "ok" and (self.need == "always" or (self.need == "gpu" and gpu_wanted))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)
