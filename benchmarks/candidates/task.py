"""The task that the runner passes to the process of a candidate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULT = "RESULT "
"""Start of the line with the measurement."""

LEFT_OUT = "LEFT OUT "
"""Start of the line that says why a candidate cannot take part."""


class LeftOutError(Exception):
    """A candidate cannot take part on this machine, which is not a failure; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one candidate."""

    program: str
    """Module under benchmarks.candidates."""
    action: str
    """"check" compares outputs with the facts of the dataset, "time" measures, "both" measures and then checks,
    "convert" writes the dataset in the format of the candidate."""
    dataset: str
    """Folder with the shards, prepared."""
    output: str
    """See `Workload.output`."""
    batch_size: int
    """Samples per batch."""
    warmup_samples: int
    """Samples before the clock starts."""
    samples: int
    """Samples that are timed."""
    device: str = "cpu"
    """Device on which batches are delivered: "cpu" or "gpu"."""
    seconds: float = 0
    """Time limit of the timed part in seconds; 0 waits for all samples."""
    trains: bool = False
    """Whether a separate part of the run has a simulated training step after each batch."""
    url: str = ""
    """URL of that folder on the S3 server; "" without one."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the candidate."""

    @property
    def shards(self) -> list[str]:
        """Paths of the shards, in order."""
        return [str(path) for path in sorted(Path(self.dataset).glob("*.tar"))]

    @property
    def layout(self) -> str:
        """Layout of images: "HWC" or "CHW"."""
        return str(self.options.get("layout", "CHW"))

    @property
    def decodes_on(self) -> str:
        """Device on which candidates decode if they support both: "cpu" or "gpu"."""
        return str(self.options.get("device", self.device))

    def to_json(self) -> str:
        """Returns the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Returns the task from a line of `to_json`."""
        return cls(**json.loads(text))
