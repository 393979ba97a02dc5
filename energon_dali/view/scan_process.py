"""What a process that scans does: it examines a block of samples for each request, and stores what it finds."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from energon_dali.errors import EnergonDaliError
from energon_dali.view.sample_facts import SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource
from energon_dali.view.scan_store import BLOCK, ScanStore

_NICENESS = 10


class BlockScanner:
    """Scans blocks of datasets.

    Args:
        folder: The folder of scans.
        tasks: Of each dataset, the fields of its ScanSource and its identity.
    """

    def __init__(self, folder: str, tasks: list[tuple[dict[str, Any], str]]) -> None:
        self._folder = Path(folder)
        self._tasks = tasks
        self._number = -1
        self._opened: OpenedScanSource | None = None

    def scan(self, number: int, block: int) -> None:
        """Examines the samples of a block together, and stores what is found.

        Args:
            number: Number of the dataset.
            block: Number of the block.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: A file cannot be read or written.
        """
        opened, store = self._open(number), self._store(number)
        store.write_block(block, examine_block(opened, block, store.crashes()))

    def examine(self, number: int, index: int) -> None:
        """Examines one sample, unless it once ended a process, to see whether it ends this one.

        Args:
            number: Number of the dataset.
            index: Index of the sample.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: A file cannot be read.
        """
        opened = self._open(number)
        if index not in self._store(number).crashes():
            list(examine_samples(opened, index, index + 1))

    def _store(self, number: int) -> ScanStore:
        return ScanStore(self._folder, self._tasks[number][1])

    def _open(self, number: int) -> OpenedScanSource:
        if self._opened is None or number != self._number:
            if self._opened is not None:
                self._opened.close()
            self._number, self._opened = number, ScanSource(**self._tasks[number][0]).open()
        return self._opened


def examine_block(opened: OpenedScanSource, block: int, crashes: dict[int, str]) -> list[SampleFacts]:
    """Returns the facts of the samples of a block.

    Args:
        opened: The dataset.
        block: Number of the block.
        crashes: Reasons of the samples that must not be examined again.
    """
    indices = range(block * BLOCK, min((block + 1) * BLOCK, opened.num_samples))
    if not any(index in crashes for index in indices):
        return list(examine_samples(opened, indices.start, indices.stop))
    found = []
    for index in indices:
        if index in crashes:
            shard, key = opened.reader.name(*opened.reader.locate(index))
            found.append(SampleFacts(index, key, shard, stage="decode", reason=crashes[index]))
        else:
            found += examine_samples(opened, index, index + 1)
    return found


def answer_scans(job: list[Any]) -> Callable[[list[Any]], str]:
    """Returns what answers the requests of a scan, in its process, which ends with the one that started it.

    A request is ["begin"], ["scan", number of the dataset, block] or ["examine", number of the dataset, index]. The
    answer is "", or why the scan cannot go on.

    Args:
        job: Arguments of BlockScanner.
    """
    scanner = BlockScanner(*job)
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def answer(request: list[Any]) -> str:
        try:
            if request[0] != "begin":
                getattr(scanner, request[0])(*request[1:])
        except (EnergonDaliError, OSError) as error:
            return str(error)
        return ""

    return answer


def _end_with_parent() -> None:
    """Ends the process when its standard input is closed, whatever it decodes."""
    poll = select.poll()
    poll.register(0, 0)  # which waits for the other end alone
    poll.poll()
    os._exit(0)  # the transaction that is open is rolled back
