"""The device on which a test of this folder runs, and what differs there: CUDA streams, waiting, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from energon_dali.decode import DaliDecoder, Decoded, MediaHandle

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a test runs."""

    kind: Literal["cpu", "gpu"]
    """"gpu", or "cpu" for a dry run."""

    @property
    def torch_device(self) -> str:
        """Name for torch."""
        return "cuda" if self.kind == "gpu" else "cpu"

    def decoder(self, **options: Any) -> DaliDecoder:
        """Returns a decoder of images and clips for this device."""
        return DaliDecoder(image_decode_device=self.kind, video_decode_device=self.kind, **options)

    @contextmanager
    def other_stream(self) -> Iterator[None]:
        """Makes a new CUDA stream current."""
        if self.kind == "cpu":
            yield
            return
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            yield

    def stay_busy(self, cycles: int = 5_000_000) -> None:
        """Keeps the current CUDA stream busy for some milliseconds; returns at once."""
        if self.kind == "gpu":
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Waits for all work on the device."""
        if self.kind == "gpu":
            torch.cuda.synchronize()

    def used_bytes(self) -> int:
        """Returns the bytes in use, of the whole GPU or of this process."""
        if self.kind == "gpu":
            free, total = torch.cuda.mem_get_info()
            return total - free
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def values_of(decoder: DaliDecoder, handles: Sequence[MediaHandle]) -> list[Any]:
    """Returns the values of a block; all of its handles must be decodable."""
    outcomes = decoder.decode_block(handles)
    assert all(isinstance(outcome, Decoded) for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes if isinstance(outcome, Decoded)]


def run_program(
    code: str, *arguments: str, python: str = sys.executable, timeout_seconds: int = 110
) -> subprocess.CompletedProcess[str]:
    """Runs a program in its own process; it may end in any way."""
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, timeout=timeout_seconds, cwd=ROOT
    )


def ending_of(done: subprocess.CompletedProcess[str]) -> str:
    """Describes how a process ended: "exit 0", "signal 11", ..."""
    code = done.returncode
    return f"signal {-code}" if code < 0 else f"exit {code}"
