"""Whatever an option is given, a command ends with a message: never with a traceback, and never with endless work."""

from __future__ import annotations

import random
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from energon_dali.cli.main import main
from tests.shards.tars import captions

VALUES = (
    *("", " ", "0", "-1", "1e400", "nan", "inf", "9" * 26, "0x10", "1..2", "5:6", "1,1,1", "-1,2,3", "1e308,1e308,1"),
    *("../../x", ".", "~", "a:b", ":", "os:getcwd", "os:", "json:loads", "sys:maxsize", '"unclosed', "'", "{", "[]"),
    *('{"a": 1}', "[" * 2000, "*", "(", "{1..99999999}", "x=y", "=", "train=1", "train:(", "auto", "a" * 5000, "\n"),
)
COMMANDS = {
    "info": ("DATA",),
    "lint": ("DATA",),
    "plan": ("DATA", "--step", "0"),
    "preview": ("DATA", "--index", "0"),
    "prepare": ("DATA", "--non-interactive", "--force-overwrite", "--split-ratio", "1,0,0"),
}
NOT_TRIED = {
    ("lint", "--parallel"),
    ("prepare", "--num-workers"),
    ("prepare", "--shards-in-flight"),
    ("prepare", "--ray"),
    ("prepare", "--tmp-path"),
}
"""Options that start processes, and the one that names a folder elsewhere."""

HINTS = pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
"""Python's hint about a regular expression that is given."""


def cases() -> list[tuple[str, str, str]]:
    """Returns all (command, option, value)."""
    found = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag and (name, option.opts[0]) not in NOT_TRIED:
                found += [(name, option.opts[0], value) for value in VALUES]
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "a" / "b" / "data"
    captions(root)
    words = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    assert CliRunner().invoke(main, ["prepare", str(root), *words]).exit_code == 0
    return root


def check(data: Path, chosen: list[tuple[str, str, str]]) -> None:
    around = sorted(path for path in data.parent.parent.rglob("*") if data not in path.parents)
    for command, option, value in chosen:
        words = [str(data) if word == "DATA" else word for word in COMMANDS[command]]
        done = CliRunner().invoke(main, [command, *words, f"{option}={value}"])
        shown = f"{command} {option}={value[:60]!r}: {done.exception!r}\n{done.output[-500:]}"
        assert done.exception is None or isinstance(done.exception, SystemExit), shown
        assert done.exit_code == 0 or "Error" in done.output or "Aborted" in done.output, shown
    assert sorted(path for path in data.parent.parent.rglob("*") if data not in path.parents) == around


@HINTS
def test_some_values(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    check(data, random.Random(7).sample(cases(), 60))


@HINTS
@pytest.mark.sweep
@pytest.mark.timeout(900)  # about 600 runs of a command, possibly on a busy machine
@pytest.mark.parametrize("command", COMMANDS)
def test_all_values(data: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    check(data, [case for case in cases() if case[0] == command])


def float_options() -> list[tuple[str, str]]:
    """Returns all (command, option) whose value is a number with a fraction."""
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return [
        (name, option.opts[0])
        for name, command in commands.items()
        for option in (command.params if command is not None else ())
        if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType)
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_numbers_that_are_not_finite_are_refused(value: str) -> None:
    options = float_options()
    assert ("plan", "--max-moved") in options
    for name, option in options:
        done = CliRunner().invoke(main, [name, f"{option}={value}", "/"])
        assert done.exit_code == 2, (name, option)
        assert "not in the range" in done.output or "is not a finite number" in done.output, done.output
