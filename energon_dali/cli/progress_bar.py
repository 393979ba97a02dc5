"""Progress bars of the commands: a bar in a terminal, a line now and then in a log or a pipe."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm import tqdm

LINE_SECONDS = 20.0
"""Time between two lines where there is no terminal."""


def open_bar(**options: Any) -> tqdm[Any]:
    """Returns a progress bar on stderr, of which a file or a pipe gets whole lines, so that logs stay short.

    Args:
        **options: Those of tqdm, such as total, desc and unit.
    """
    if sys.stderr.isatty():
        return tqdm(file=sys.stderr, **options)
    return tqdm(file=_Lines(sys.stderr), mininterval=LINE_SECONDS, maxinterval=LINE_SECONDS, ncols=100, **options)


class _Lines:
    """Writes what tqdm draws over and over as lines.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a state of the bar; what only moves the cursor or clears the line is left out."""
        line = text.strip("\r\n ")
        if line:
            self._stream.write(f"{line}\n")
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()
