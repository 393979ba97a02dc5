"""What the runner tells a candidate's process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULT = "RESULT "
"""How the line with the measurement begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one candidate."""

    program: str
    """Module under benchmarks.candidates."""
    action: str
    """"check" compares outputs with the facts of the dataset, "time" measures."""
    dataset: str
    """Folder with the shards, prepared."""
    output: str
    """"uint8", "float224" or "none"."""
    batch_size: int
    """Samples per batch."""
    warmup_samples: int
    """Samples before the clock starts."""
    samples: int
    """Samples that are timed."""
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

    def to_json(self) -> str:
        """Returns the task as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Returns the task of a line that `to_json` made."""
        return cls(**json.loads(text))
