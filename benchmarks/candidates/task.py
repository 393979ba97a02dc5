"""What the runner tells a candidate's process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULT = "RESULT "
"""How the line with the measurement begins."""

LEFT_OUT = "LEFT OUT "
"""How the line begins that says why a candidate cannot take part here."""


class LeftOutError(Exception):
    """A candidate cannot take part on this machine, which is no failure; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one candidate."""

    program: str
    """Module under benchmarks.candidates."""
    action: str
    """"check" compares outputs with the facts of the dataset, "time" measures, "both" does the second and the first."""
    dataset: str
    """Folder with the shards, prepared."""
    output: str
    """As `Workload.output` says."""
    batch_size: int
    """Samples per batch."""
    warmup_samples: int
    """Samples before the clock starts."""
    samples: int
    """Samples that are timed."""
    device: str = "cpu"
    """Where batches must end: "cpu" or "gpu"."""
    seconds: float = 0
    """The timed part ends after so many seconds, though fewer samples came; 0 waits for all samples."""
    trains: bool = False
    """Whether a simulated training step follows each batch in a part of its own."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the candidate is told."""

    @property
    def shards(self) -> list[str]:
        """Paths of the shards, in order."""
        return [str(path) for path in sorted(Path(self.dataset).glob("*.tar"))]

    @property
    def layout(self) -> str:
        """Layout of pictures: "HWC" or "CHW"."""
        return str(self.options.get("layout", "CHW"))

    @property
    def decodes_on(self) -> str:
        """Where candidates that have the choice decode: "cpu" or "gpu"."""
        return str(self.options.get("device", self.device))

    def to_json(self) -> str:
        """Returns the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Returns the task of a line that `to_json` made."""
        return cls(**json.loads(text))
