"""One future for a block whose parts are decoded in several places."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from energon_dali.decode.dali.runtime.futures import StreamFuture
from energon_dali.decode.interface import Outcome


class Gather:
    """Puts the outcomes of the parts of a block into one future.

    Args:
        count: Handles of the block.
        stream: torch.cuda.Stream on which the values will be used; None on the CPU.
    """

    def __init__(self, count: int, stream: Any = None) -> None:
        self.future = StreamFuture(stream)
        self._outcomes: list[Outcome | None] = [None] * count
        self._missing = count
        self._lock = threading.Lock()

    def put(self, positions: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Takes the outcomes of some positions of the block."""
        with self._lock:
            for position, outcome in zip(positions, outcomes, strict=True):
                self._outcomes[position] = outcome
            self._missing -= len(positions)
            complete = self._missing == 0
        if complete:
            with suppress(InvalidStateError):  # cancelled, or a part failed
                self.future.set_result(self._outcomes)  # type: ignore[arg-type]

    def put_when_done(self, positions: Sequence[int], part: Future[list[Outcome]]) -> None:
        """Takes the outcomes of some positions once they are there; a failure of the part is one of the block."""

        def take(done: Future[list[Outcome]]) -> None:
            try:
                outcomes: list[Outcome] = Future.result(done)  # no stream waits before the block is taken
                self.put(positions, outcomes)
            except BaseException as error:  # a callback's own error, or CancelledError, would reach nobody
                with suppress(InvalidStateError):  # another part failed before
                    self.future.set_exception(error)

        part.add_done_callback(take)
