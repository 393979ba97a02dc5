"""What the processes of a rank work on, in memory that they share: each writes its own region, and all can read."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zlib
from typing import TYPE_CHECKING

from energon_dali.datasets.metrics import WorkReport
from energon_dali.loader.processes.shared_memory import map_memory, taking_memory

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics

_REGION_BYTES = 16 * 1024
_HEAD_WORDS, _WORD_BYTES = 3, 8
"""A region begins with a number that is odd while it is being written, and the length and checksum of its report."""
_HEAD_BYTES = _HEAD_WORDS * _WORD_BYTES
_MOST_TRIES = 50
_WRITE_SECONDS = 0.25
"""How often a process reports while it works."""


class WorkBoard:
    """The memory: region 0 is the decode process's, and the workers' follow it.

    Args:
        num_processes: Number of regions.
        descriptor: The memory file of a board that another process made; None makes one.

    Raises:
        WorkerError: The system refused the memory.
    """

    def __init__(self, num_processes: int, descriptor: int | None = None) -> None:
        size = num_processes * _REGION_BYTES
        self._num_processes = num_processes
        with taking_memory(size):
            if descriptor is None:
                self._file = io.FileIO(os.memfd_create("energon-dali-work", os.MFD_CLOEXEC), "r+")
                self._file.truncate(size)
            else:
                self._file = io.FileIO(descriptor, "r+")
            self._memory = memoryview(map_memory(self._file.fileno(), size)).cast("B")
        # Assigning an item writes all of its bytes at once. `struct` writes them one after the other, so that a number
        # may be read half written.
        self._words = self._memory.cast("Q")

    @classmethod
    def of_descriptor(cls, descriptor: int) -> WorkBoard:
        """Returns the board that another process made; takes the descriptor over."""
        return cls(os.fstat(descriptor).st_size // _REGION_BYTES, descriptor)

    def fileno(self) -> int:
        """Returns the descriptor to send to a process that writes here."""
        return self._file.fileno()

    def close_file(self) -> None:
        """Closes the descriptor when no further process is to have it; the memory stays."""
        self._file.close()

    def write(self, process: int, report: WorkReport) -> None:
        """Writes the report of a process into its region, in one thread at a time."""
        data = json.dumps(report).encode()
        if process >= self._num_processes or len(data) > _REGION_BYTES - _HEAD_BYTES:
            return
        start = process * _REGION_BYTES
        head = start // _WORD_BYTES
        number = self._words[head] | 1  # odd already if a process was killed while it wrote
        self._words[head] = number
        self._words[head + 1], self._words[head + 2] = len(data), zlib.crc32(data)
        self._memory[start + _HEAD_BYTES : start + _HEAD_BYTES + len(data)] = data
        self._words[head] = number + 1

    def read(self, process: int) -> WorkReport | None:
        """Returns the last report of a process; None if there is none, or it was killed while it wrote one."""
        start = process * _REGION_BYTES
        head = start // _WORD_BYTES
        for _ in range(_MOST_TRIES):
            number, length, checksum = self._words[head : head + _HEAD_WORDS]
            if number == 0:
                return None
            data = bytes(self._memory[start + _HEAD_BYTES : start + _HEAD_BYTES + length])
            # Processors other than x86 may show writes in another order: hence the checksum.
            if number % 2 == 0 and number == self._words[head] and checksum == zlib.crc32(data):
                return WorkReport(*json.loads(data))
            time.sleep(0)
        return None

    def read_all(self) -> list[WorkReport]:
        """Returns the reports of all processes that have written one."""
        found = map(self.read, range(self._num_processes))
        return [report for report in found if report is not None]


class WorkReporter:
    """Writes what this process works on to a board: four times per second, from a thread, and after its first block.

    Args:
        board: The memory.
        process: The region.
        metrics: Those of this process.
    """

    def __init__(self, board: WorkBoard, process: int, metrics: Metrics) -> None:
        self._board = board
        self._process = process
        self._metrics = metrics
        self._blocks_reported = False
        self._lock = threading.Lock()
        launched = board.read(process)
        if launched is not None:
            metrics.clock("start").count_since(launched.since)

    def start(self) -> None:
        """Starts the thread; it ends with the process."""
        self.write()
        threading.Thread(target=self._run, name="energon-dali-work", daemon=True).start()

    def write(self) -> None:
        """Writes what the process works on now."""
        with self._lock:
            self._board.write(self._process, self._metrics.work_report())

    def note_block(self) -> None:
        """Notes that a block was sent."""
        if not self._blocks_reported:
            self._blocks_reported = True
            self.write()

    def _run(self) -> None:
        while True:
            time.sleep(_WRITE_SECONDS)
            self.write()
