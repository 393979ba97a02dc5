"""A check of parts that ends its process, for tests of what survives that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from energon_dali.shards import PartFacts


class DeadlyCheck:
    """Ends its process with SIGKILL at the part `kill`, as often as a file says.

    Args:
        times: The file; it holds a number.
    """

    def __init__(self, times: Path) -> None:
        self.times = times

    def __call__(self, name: str, content: Callable[[], bytes]) -> PartFacts | None:
        left = int(self.times.read_text()) if name == "kill" else 0
        if left:
            self.times.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return None
