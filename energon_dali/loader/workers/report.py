"""Tells the process that waits what became of samples while none of them makes it into a block or batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.loader.workers.channel import Channel

_EVERY_SECONDS = 1.0


class DropReport:
    """Sends what `Metrics` counted, at most once per second and never waiting for room.

    Args:
        channel: Connection to the process that waits.
        metrics: Its `on_dropped` calls `tell` from now on.
        encode: Makes a message of what the metrics drained.
    """

    def __init__(self, channel: Channel, metrics: Metrics, encode: Callable[[dict[str, Any] | None], bytes]) -> None:
        self._channel = channel
        self._metrics = metrics
        self._encode = encode
        self._told = time.monotonic()
        metrics.on_dropped = self.tell

    def begin(self) -> None:
        """Notes that the work on a block or batch begins."""
        self._told = time.monotonic()

    def tell(self) -> None:
        """Sends what was counted, if the last time was a second ago."""
        now = time.monotonic()
        if now - self._told < _EVERY_SECONDS:
            return
        self._told = now
        record = self._metrics.drain()
        sent = False
        with contextlib.suppress(OSError):  # the other end is gone, which whoever sends the next block finds out
            sent = self._channel.send(self._encode(record), wait=False)
        if not sent:
            self._metrics.merge(record, again=True)
