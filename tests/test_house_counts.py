"""The counts of `tools/house.py` may not get worse without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import house


def test_a_larger_or_an_unknown_count_is_worse() -> None:
    assert house.worse({"cycles": 1, "statements": 1000}, {"cycles": 1, "statements": 999}) == []
    assert house.worse({"cycles": 1, "statements": 1000}, {"cycles": 2, "statements": 1001, "pairs": 0}) == [
        "cycles: 2, and it was 1.",
        "statements: 1,001, and it was 1,000.",
        "pairs: 0, and it is new.",
    ]


@pytest.mark.parametrize(("now", "status", "words"), [(11, 1, "--update"), (10, 0, ""), (9, 0, "Keep it")])
def test_the_check_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    now: int,
    status: int,
    words: str,
) -> None:
    kept = tmp_path / "house.json"
    kept.write_text(json.dumps({"statements": 10}))
    monkeypatch.setattr(house, "KEPT", kept)
    monkeypatch.setattr(house, "kept_counts", lambda root: {"statements": now})
    assert house.check(tmp_path) == status
    printed = capsys.readouterr().out
    assert words in printed
    assert bool(printed) == bool(words)


def test_what_is_kept_is_counted(tmp_path: Path) -> None:
    (tmp_path / "energon_dali").mkdir()
    (tmp_path / "energon_dali" / "alone.py").write_text("x = 1\n")
    kept = json.loads(house.KEPT.read_text(encoding="utf-8"))
    counted = {name for name in house.count(tmp_path) if name not in house.NOT_KEPT}
    assert counted < set(kept)
    assert {name for name in kept if "on the way of" in name} == set(kept) - counted
