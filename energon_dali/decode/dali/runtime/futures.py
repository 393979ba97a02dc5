"""The future of a block, and who waits for its values on a GPU."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from energon_dali.decode.interface import Decoded, Outcome


class StreamFuture(Future[list[Outcome]]):
    """The outcomes of a block. The consumer's CUDA stream waits for them when they are taken, and not before.

    A stream that waited as soon as a block is decoded would hold up what the consumer enqueues for the block before it.

    Args:
        stream: torch.cuda.Stream on which the values will be used; None on the CPU.
    """

    def __init__(self, stream: Any = None) -> None:
        super().__init__()
        self._stream = stream

    def result(self, timeout: float | None = None) -> list[Outcome]:
        """Returns the outcomes, whose values the consumer's stream may use from now on; the host does not wait for the
        GPU.
        """
        outcomes = super().result(timeout)
        if self._stream is not None:
            events = {id(outcome.ready): outcome.ready for outcome in outcomes if isinstance(outcome, Decoded)}
            for event in events.values():
                if event is not None:
                    self._stream.wait_event(event)
        return outcomes
