"""Examines one sample as a scan does: facts of its parts, and why it fails to decode."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from energon_dali.view.sample_facts import SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource

_KEPT = 256


class SampleCheck:
    """Examines samples one at a time, and keeps the results of the last ones. Thread-safe.

    Args:
        sources: The datasets; methods name one of them by its number in this list.
    """

    def __init__(self, sources: Sequence[ScanSource]) -> None:
        self._sources = sources
        self._opened: dict[int, OpenedScanSource] = {}
        self._lock = threading.Lock()
        self._facts: OrderedDict[tuple[int, int], SampleFacts] = OrderedDict()

    def examine(self, source: int, index: int) -> SampleFacts:
        """Returns the facts of a sample; its media are decoded to the end.

        Args:
            source: Number of the dataset.
            index: Number of the sample.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: It cannot be read.
        """
        with self._lock:
            found = self._facts.get((source, index))
            if found is not None:
                return found
            if source not in self._opened:
                self._opened[source] = self._sources[source].open()
            (facts,) = examine_samples(self._opened[source], index, index + 1)
            self._facts[source, index] = facts
            if len(self._facts) > _KEPT:
                self._facts.popitem(last=False)
            return facts

    def close(self) -> None:
        """Closes all datasets."""
        with self._lock:
            for opened in self._opened.values():
                opened.close()
            self._opened.clear()
