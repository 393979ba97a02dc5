"""The command line of Energon: `energon`, and `-m megatron.energon.cli.main`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib

from energon_dali import WorkerConfig
from energon_dali.compat import cli
from energon_dali.compat.run import execute, start
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.loader.loader_state import LoaderIdentity
from tests.datasets.oracle import Counting

ROOT = Path(__file__).resolve().parents[2]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    code = end.value.code
    return (code if isinstance(code, int) else 0), capsys.readouterr().out


def test_energon_is_a_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["energon"] == "energon_dali.compat.cli:main"


def test_it_says_that_it_is_energon(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, "megatron-energon 7.4.1\n")
    status, text = run(capsys, "--help")
    assert status == 0
    for command in ("analyze-debug", "checkpoint", "info", "lint", "mount", "prepare", "prepare-media", "preview"):
        assert f"\n  {command} " in text
    assert text.startswith("Usage: energon ")
    assert run(capsys, "no-such-command")[0] == 2


def test_redist_replaces_files_without_asking(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def dataset(rank: int) -> Counting:
        return Counting(20, WorkerConfig(rank=rank, world_size=2, num_workers=1))

    files = []
    for rank in range(2):
        files.append(tmp_path / f"loader_{rank}.json")
        files[rank].write_text(
            json.dumps(LoaderIdentity(dataset(rank)).make_state(RankIterator(dataset(rank)).state_dict()))
        )
    out = tmp_path / "out"
    words = ["checkpoint", "redist", *map(str, files), str(out), "--new-world-size", "1"]
    assert run(capsys, *words)[0] == 0
    (written,) = out.iterdir()
    written.write_text("older")
    assert run(capsys, *words)[0] == 0
    assert written.read_text() != "older"


def test_the_module_of_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_COMPAT_PROGRAM", "")
    monkeypatch.setattr(sys, "argv", [])
    path, package = start(["-m", "megatron.energon.cli.main", "info", "data"])
    assert (path, package, sys.argv[1:]) == (cli.__file__, "energon_dali.compat", ["info", "data"])


def test_annotations_of_the_program_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("class Arguments:\n    rate: float = 0.1\n")
    names: dict[str, Any] = {"__name__": "program"}
    execute(names, str(tmp_path / "program.py"), "")
    assert names["Arguments"].__annotations__ == {"rate": float}


def test_spawned_children_do_not_run_the_main_file_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no main guard, as that of unittest, so Python leaves it out as well."""
    from energon_dali.compat.run import __file__ as runner

    (tmp_path / "bundle").mkdir()
    for name in ("__init__", "__main__", "single"):
        (tmp_path / "bundle" / f"{name}.py").write_text("ran = __name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = compile(Path(runner).read_text(), runner, "exec")
    for program, ran in (
        ("module bundle", None),
        (f"file {tmp_path / 'bundle'}", None),
        ("module bundle.single", "__mp_main__"),
    ):
        monkeypatch.setenv("ENERGON_DALI_COMPAT_PROGRAM", program)
        names: dict[str, Any] = {"__name__": "__mp_main__"}
        exec(source, names)
        assert names.get("ran") == ran, program
