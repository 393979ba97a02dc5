"""Which samples the steps of each rank had, by the debug logs of a job; lines are read when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from energon_dali.diagnosis.debug_logs import DebugLogs
from energon_dali.errors import ConfigError

_MODES = ("train",)


class LoggedSteps:
    """The steps of a job, by its debug logs. A step is the batch that a rank received with this number, from 0.

    It keeps 24 bytes per batch. Thread-safe after the constructor.

    Args:
        files: The logs, the later ones of a rank last.

    Raises:
        ConfigError: They hold no batches that were delivered in training.
        StorageError: A file cannot be read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._logs = DebugLogs(files)
        loader = None
        rows = array("q")
        for place in self._logs.places(_MODES):
            rows.extend(place)
        if not rows:  # a log of Energon, of whose loaders the one with the most steps trained
            known = self._logs.loaders(_MODES)
            for loader in known:
                found = array("q")
                for place in self._logs.places(_MODES, loader=loader):
                    found.extend(place)
                rows = max(rows, found, key=len)
        if not rows:
            raise ConfigError(
                f"{', '.join(map(str, files))} holds no batches that were delivered in training. Give logs that were "
                "written with WorkerConfig(worker_log_level=1, worker_debug_path=...)."
            )
        table = np.array(rows, np.int64).reshape(-1, 4)  # step, rank, file, offset
        self._table = table[np.lexsort((table[:, 1], table[:, 0]))]

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self._table[-1, 0]) + 1

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote logs."""
        return len(np.unique(self._table[:, 1]))

    def step(self, number: int) -> list[tuple[int, list[str]]] | None:
        """Returns (rank, keys of the samples) of each batch of a step; None if there is no such step.

        Args:
            number: Number of the step, from 0.

        Raises:
            StorageError: A log cannot be read, or changed.
        """
        first, stop = np.searchsorted(self._table[:, 0], [number, number + 1])
        rows = self._table[first:stop].tolist()
        return [(rank, self._logs.keys_at(file, offset)) for _, rank, file, offset in rows] or None
