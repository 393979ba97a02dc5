"""Brings the batches of a decode process to the trainer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from energon_dali.datasets.metrics import Metrics
from energon_dali.loader.delivery import ThreadedDelivery
from energon_dali.loader.state_transfer import StateReceiver

if TYPE_CHECKING:
    from energon_dali.datasets.rank_iterator import RankIterator
    from energon_dali.datasets.stream import State
    from energon_dali.loader.decode_process.process import DecodeProcess
    from energon_dali.loader.watchdog import Watchdog
    from energon_dali.loader.workers.pool import WorkerPool

_READY = 1
"""Batches that wait for the trainer in its own process; the others wait in the decode process."""


class ProcessDelivery(ThreadedDelivery):
    """Takes batches in a thread of the trainer's process, one ahead of the trainer.

    Unpickling a list of 64 tensors in the trainer's thread made it wait 1.0 ms per batch, here 0.06 ms; beside a busy
    thread 3.5 ms against 1 ms and less, with a fifth more batches (two cores).

    Args:
        process: Makes the batches.
        watchdog: Judges how long a wait may take.
        change: Applied to every batch, in the thread.
        first_state: Gives the state before the first batch.
    """

    def __init__(
        self,
        process: DecodeProcess,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
        first_state: Callable[[], State],
    ) -> None:
        rank = cast("RankIterator[Any]", RemoteRank(process, first_state))
        super().__init__(rank, cast("WorkerPool", process), watchdog, change, _READY)
        self.process = process

    def next(self) -> Any:
        batch = super().next()
        self.process.note_streams()
        return batch


class RemoteRank:
    """The rank's part in a decode process, as if it were here.

    Args:
        process: Makes the batches.
        first_state: Gives the state before the first batch.
    """

    def __init__(self, process: DecodeProcess, first_state: Callable[[], State]) -> None:
        self._process = process
        self.metrics = Metrics()
        """Nothing is dropped on this side."""
        self._state: Callable[[], State] | State = first_state
        self._receiver = StateReceiver()

    def __iter__(self) -> RemoteRank:
        return self

    def __next__(self) -> Any:
        taken = self._process.take()
        if isinstance(taken, dict):
            self._state = taken
            raise StopIteration
        batch, sent = taken
        self._state = self._receiver.take(pickle.loads(sent))
        return batch

    def snapshot(self) -> State:
        """Returns the state after the last batch, for `stream.plain`."""
        if callable(self._state):
            self._state = self._state()
        return self._state

    def interrupt(self) -> None:
        """Does nothing: it reads nothing here."""

    def close(self) -> None:
        """Does nothing: the process is closed by who opened it."""
