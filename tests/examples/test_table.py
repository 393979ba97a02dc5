"""The table of the examples names every program, and leads to files."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PARTS = {"vlm/conversations.py"}
"""Modules that programs share."""


def test_every_program_has_a_row_and_a_command() -> None:
    text = (EXAMPLES / "README.md").read_text()
    files = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.*") if "__pycache__" not in path.parts}
    files -= PARTS | {"README.md"}
    rows = {re.findall(r"\]\(([^)]+)\)", row)[0]: row for row in re.findall(r"^\| \[.+$", text, re.MULTILINE)}
    assert set(rows) == files
    assert [name for name, row in rows.items() if f"examples/{name}" not in row.split("|")[-2]] == []
    assert [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (EXAMPLES / link).exists()] == []
