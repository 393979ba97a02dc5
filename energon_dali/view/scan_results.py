"""What a scan tells about itself and about samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """How far a scan is."""

    scanned: int
    """Number of samples that are stored."""
    total: int
    """Number of samples of the datasets."""
    running: bool
    """Whether it goes on."""
    error: str = ""
    """Why it ended before the end; "" if it did not."""

    @property
    def share(self) -> float:
        """Share that was scanned, 0 to 1."""
        return self.scanned / self.total if self.total else 1.0

    @property
    def is_complete(self) -> bool:
        """Whether every sample is stored."""
        return self.scanned >= self.total


@dataclass(frozen=True, slots=True)
class ScanFailure:
    """A sample that fails to decode."""

    index: int
    """Index in the whole dataset."""
    shard: str
    """Name of its shard."""
    key: str
    """Its key."""
    stage: str
    """"read", "load" or "decode"."""
    reason: str
    """Why, in one line, as a loader would say it."""


@dataclass(frozen=True, slots=True)
class ScanMatches:
    """Some of the samples that meet a filter."""

    indices: list[int]
    """Indices in the whole dataset, ascending."""
    share: float
    """Share of the dataset that was scanned, 0 to 1: samples that were not are missing here."""
