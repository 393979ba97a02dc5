"""The process that examines single samples for their pages: `python -m energon_dali.view.check_process`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from energon_dali.errors import EnergonDaliError
from energon_dali.view import line_process
from energon_dali.view.sample_facts import PartFacts, SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource


def answer_lines(lines: Iterable[str], write: Callable[[str], object]) -> None:
    """Answers requests.

    Args:
        lines: The datasets, as a list of the fields of ScanSource, and then requests [number of a dataset, index], each
            a line of JSON.
        write: Takes each answer, a line of JSON: {"facts": ...} or {"error": ...}.
    """
    sources: list[ScanSource] | None = None
    opened: dict[int, OpenedScanSource] = {}
    for line in lines:
        values = json.loads(line)
        if sources is None:
            sources = [ScanSource(**fields) for fields in values]
            continue
        number, index = values
        try:
            if number not in opened:
                opened[number] = sources[number].open()
            (facts,) = examine_samples(opened[number], index, index + 1)
            found: dict[str, Any] = {"facts": to_plain(facts)}
        except (EnergonDaliError, OSError) as error:
            found = {"error": str(error)}
        write(json.dumps(found) + "\n")


def to_plain(facts: SampleFacts) -> dict[str, Any]:
    """Returns facts as plain values, without the text of the sample."""
    values = asdict(facts)
    values["text"] = ""
    for part in values["parts"]:
        part["digest"] = None if part["digest"] is None else base64.b64encode(part["digest"]).decode()
    return values


def from_plain(values: dict[str, Any]) -> SampleFacts:
    """Returns the facts that `to_plain` made plain."""
    parts = [
        PartFacts(**{**part, "digest": None if part["digest"] is None else base64.b64decode(part["digest"])})
        for part in values["parts"]
    ]
    return SampleFacts(**{**values, "parts": parts})


if __name__ == "__main__":
    line_process.answer_lines(answer_lines)
