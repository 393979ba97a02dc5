"""Examines one sample as a scan does: facts of its parts, and why it fails to decode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from energon_dali.errors import DatasetError, EnergonDaliError
from energon_dali.view.line_process import LineProcess, ProcessEndedError
from energon_dali.view.sample_facts import PartFacts, SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource

CHECK_SECONDS = 60.0
"""Longest time for one sample."""
_KEPT = 256


class SampleCheck:
    """Examines samples one at a time, in a process of its own, and keeps the results of the last ones. Thread-safe.

    Args:
        sources: The datasets; methods name one of them by its number in this list.
        seconds: Longest time for one sample.
    """

    def __init__(self, sources: Sequence[ScanSource], *, seconds: float = CHECK_SECONDS) -> None:
        self._process = LineProcess(answer_checks, [asdict(source) for source in sources])
        self._seconds = seconds
        self._lock = threading.Lock()
        self._facts = lru_cache(_KEPT)(self._examine)

    def examine(self, source: int, index: int) -> SampleFacts:
        """Returns the facts of a sample; its media are decoded to the end.

        Args:
            source: Number of the dataset.
            index: Number of the sample.

        Raises:
            DatasetError: The dataset cannot be opened or read.
        """
        with self._lock:
            return self._facts(source, index)

    def _examine(self, source: int, index: int) -> SampleFacts:
        try:
            answer = self._process.ask([source, index], self._seconds)
        except ProcessEndedError as error:
            return SampleFacts(index, "", "", stage="decode", reason=f"Decoding it {error}")
        if "error" in answer:
            raise DatasetError(answer["error"])
        return from_plain(answer["facts"])

    def close(self) -> None:
        """Ends the process for good, whatever it examines."""
        self._process.close()
        with self._lock:
            self._process.end()


def answer_checks(datasets: list[dict[str, Any]]) -> Callable[[list[int]], dict[str, Any]]:
    """Returns what answers the requests of a check, in its process: {"facts": ...} or {"error": ...}.

    Args:
        datasets: Fields of the ScanSource of each dataset. A request is [number of a dataset, index].
    """
    opened: dict[int, OpenedScanSource] = {}

    def answer(request: list[int]) -> dict[str, Any]:
        number, index = request
        try:
            if number not in opened:
                opened[number] = ScanSource(**datasets[number]).open()
            (facts,) = examine_samples(opened[number], index, index + 1)
            return {"facts": to_plain(facts)}
        except (EnergonDaliError, OSError) as error:
            return {"error": str(error)}

    return answer


def to_plain(facts: SampleFacts) -> dict[str, Any]:
    """Returns facts as plain values, without the text of the sample."""
    values = {**asdict(facts), "text": ""}
    for part in values["parts"]:
        part["digest"] = part["digest"] and part["digest"].hex()
    return values


def from_plain(values: dict[str, Any]) -> SampleFacts:
    """Returns the facts that `to_plain` made plain."""
    parts = [
        PartFacts(**{**part, "digest": part["digest"] and bytes.fromhex(part["digest"])}) for part in values["parts"]
    ]
    return SampleFacts(**{**values, "parts": parts})
