"""The commands on JSONL files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner, Result

import energon_dali
from energon_dali.cli.main import main


def run(*arguments: str | Path, typed: str = "") -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=typed)


def test_prepare_and_info(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[2]\n{"a": 3}\n')
    assert "is not prepared" in run("info", path).output
    result = run("prepare", path, "--no-progress")
    assert result.exit_code == 0, result.output
    assert "1 lines do not begin with { and end with }" in result.output
    assert "Prepared 3 samples" in result.output
    described = run("info", path).output
    assert "Samples:     3\n" in described
    assert "Size:        23 bytes in 1 file" in described
    again = run("prepare", path, "--non-interactive")
    assert (again.exit_code, "--force-overwrite" in again.output) == (1, True)
    assert "Prepared" not in run("prepare", path, typed="n\n").output
    assert "Prepared 3" in run("prepare", path, "--force-overwrite").output
    missing = run("prepare", tmp_path / "none.jsonl")
    assert missing.exit_code == 1
    assert "is missing" in missing.output


def test_the_command_of_a_message_runs_as_it_stands(tmp_path: Path) -> None:
    """In a folder whose name a shell would split."""
    path = tmp_path / "my 'data'" / "lines.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"a": 1}\n')
    _, command, _ = run("info", path).output.split("`")
    program, *words = shlex.split(command)
    assert (program, run(*words).exit_code) == ("energon-dali", 0)
    assert "Samples:     1\n" in run("info", path).output


def test_every_command_in_a_message_quotes_its_path() -> None:
    places = {path: path.read_text() for path in Path(energon_dali.__file__).parent.rglob("*.py")}
    command = re.compile(r"energon-dali[^`{}]*\{(?!shlex|command\}|[^{}]*\.quoted\})[^{}]*\}`")
    unquoted = {str(path): command.findall(text) for path, text in places.items() if command.search(text)}
    assert unquoted == {}
    assert sum("shlex.quote(" in text or ".quoted}" in text for text in places.values()) > 15
