"""Brings the batches of a decode process to the trainer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.datasets.base import State
    from energon_dali.loader.decode_process.process import DecodeProcess
    from energon_dali.loader.watchdog import Watchdog


class ProcessDelivery:
    """Takes batches in the trainer's thread: where one has come, that takes neither a wait nor a thread.

    Args:
        process: Makes the batches.
        watchdog: Judges how long a wait may take.
        first_state: Gives the state before the first batch.
    """

    def __init__(self, process: DecodeProcess, watchdog: Watchdog, first_state: Callable[[], State]) -> None:
        self._rank = RemoteRank(process, first_state)
        self.process = process
        self._watchdog = watchdog
        process.on_wait = watchdog.check

    def next(self) -> Any:
        batch = next(self._rank)
        self._watchdog.fed()
        return batch

    def state(self) -> State:
        return self._rank.state_dict()

    @property
    def occupancy(self) -> float | None:
        return self.process.occupancy

    def close(self) -> None:
        self.process.close()


class RemoteRank:
    """The rank's part in a decode process, as if it were here; also for the thread of a ThreadedDelivery, which pins.

    Args:
        process: Makes the batches.
        first_state: Gives the state before the first batch.
    """

    def __init__(self, process: DecodeProcess, first_state: Callable[[], State]) -> None:
        self._process = process
        self._state: Callable[[], State] | State | bytes = first_state

    def __iter__(self) -> RemoteRank:
        return self

    def __next__(self) -> Any:
        taken = self._process.take()
        if isinstance(taken, dict):
            self._state = taken
            raise StopIteration
        batch, self._state = taken
        return batch

    def state_dict(self) -> State:
        """Returns the state behind the last batch. It is unpickled only here: most states are never asked for."""
        state = self._state
        if isinstance(state, bytes):
            state = pickle.loads(state)
        elif callable(state):
            state = state()
        self._state = state
        return state

    def close(self) -> None:
        """Does nothing: the process is closed by who opened it."""
