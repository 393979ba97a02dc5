"""What a check found wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong."""

    shard: str
    """Name of the shard."""
    key: str
    """Key of the sample; "" where the shard as a whole is wrong."""
    reason: str
    """What is wrong, in one line."""

    def __str__(self) -> str:
        return f"  {self.shard}  {self.key}  {self.reason}" if self.key else f"  {self.shard}  {self.reason}"


def reason_of(error: Exception) -> str:
    """Returns an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
