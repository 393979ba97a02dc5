"""How the S3 server behaves: latency, bandwidth, faults, and who may read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

Fault = Literal["503", "truncated", "reset", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything that can be changed while the server runs."""

    latency_seconds: float = 0.0
    """Added before the first byte of each response; other requests are not held up."""
    bandwidth: float = 0.0
    """Bytes per second of all connections together; 0 for no limit."""
    connection_bandwidth: float = 0.0
    """Bytes per second of each connection; 0 for no limit."""
    fault_503: float = 0.0
    """Probability that a request is answered with 503, SlowDown."""
    fault_truncated: float = 0.0
    """Probability that the connection closes after half of a response."""
    fault_reset: float = 0.0
    """Probability that the connection is reset after half of a response."""
    fault_slow: float = 0.0
    """Probability that a response waits `slow_seconds` longer."""
    slow_seconds: float = 1.0
    """Length of a slow response's wait."""
    seed: int = 0
    """Of the faults: a request's fault depends on the seed, the request, and how often it was made before."""
    access_keys: tuple[str, ...] = ()
    """Access keys that may read; none for everybody. A key that was accepted before and is not now has expired."""

    def __post_init__(self) -> None:
        chances = (self.fault_503, self.fault_truncated, self.fault_reset, self.fault_slow)
        if min(chances) < 0 or sum(chances) > 1:
            raise ValueError(
                f"The probabilities of faults are {chances}: none may be negative, and their sum at most 1."
            )
        if min(self.latency_seconds, self.bandwidth, self.connection_bandwidth, self.slow_seconds) < 0:
            raise ValueError(f"No option may be negative: {self}.")

    def changed(self, document: dict[str, Any]) -> ServerOptions:
        """Returns the options with those of a JSON document in place.

        Raises:
            ValueError: One of them is unknown, or wrong.
        """
        unknown = document.keys() - {field.name for field in fields(self)}
        if unknown:
            raise ValueError(f"Unknown options: {sorted(unknown)}.")
        if "access_keys" in document:
            document = {**document, "access_keys": tuple(document["access_keys"])}
        return replace(self, **document)

    def fault(self, request: bytes, repetition: int) -> Fault | None:
        """Returns the fault of a request.

        Args:
            request: What distinguishes it from others: method, path and range.
            repetition: How often it was made before.
        """
        digest = hashlib.blake2b(b"%d %d %b" % (self.seed, repetition, request), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / 2**64
        chances: tuple[tuple[Fault, float], ...] = (
            ("503", self.fault_503),
            ("truncated", self.fault_truncated),
            ("reset", self.fault_reset),
            ("slow", self.fault_slow),
        )
        for name, chance in chances:
            if drawn < chance:
                return name
            drawn -= chance
        return None

    @property
    def has_faults(self) -> bool:
        """Whether any fault can occur."""
        return max(self.fault_503, self.fault_truncated, self.fault_reset, self.fault_slow) > 0
