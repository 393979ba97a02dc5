from __future__ import annotations

import io
import sys

import pytest

from energon_dali.cli.progress_bar import open_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **options: object) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with open_bar(desc="Packing", unit="sample", **options) as bar:
        for _ in range(1000):
            bar.update()
    return stream.getvalue()


def test_a_log_gets_two_lines_of_a_short_job(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(io.StringIO(), monkeypatch, total=1000)
    first, last = text.splitlines()
    assert "0/1000" in first
    assert "1000/1000" in last
    assert "\r" not in text


def test_a_log_gets_nothing_of_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(io.StringIO(), monkeypatch, total=1000, disable=True) == ""
    assert drawn(io.StringIO(), monkeypatch, leave=False, delay=2) == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(Terminal(), monkeypatch, total=1000)
    assert "\r" in text
    assert "1000/1000" in text
