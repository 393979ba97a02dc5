"""The observations of the GPU tests are written to one file, with a description of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import observations
from tests.gpu.observations import Observations
from tests.gpu.where import Where


def test_facts_are_gathered_and_the_machine_is_asked_once(
    where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def describe() -> dict[str, Any]:
        asked.append("nvidia-smi")
        return {"processor": "p"}

    monkeypatch.setattr(observations, "describe_machine", describe)
    monkeypatch.setenv("GPU_OBSERVATIONS", str(tmp_path / "deep" / "seen.json"))
    for number in range(3):
        Observations(where.kind, "one")(**{f"fact {number}": number})
    Observations(where.kind, "two")(ending="exit 0")
    report = json.loads((tmp_path / "deep" / "seen.json").read_text())
    assert report["seen"] == {"one": {"fact 0": 0, "fact 1": 1, "fact 2": 2}, "two": {"ending": "exit 0"}}
    assert (report["device"], report["machine"]["processor"]) == (where.kind, "p")
    assert asked == ["nvidia-smi"]
