"""A table is made again when its results are incomplete, or what they measure has changed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_all, machine
from benchmarks.bench_all import NOT_MEASURED, TABLES, Table, measured_paths, why_stale


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    (tmp_path / "energon_dali").mkdir()
    (tmp_path / "energon_dali" / "loader.py").write_text("old")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    _git(tmp_path, "init", "-q")
    _commit(tmp_path)
    monkeypatch.setattr(bench_all, "ROOT", tmp_path)
    monkeypatch.setattr("benchmarks.tables.RESULTS", tmp_path / "benchmarks" / "results")
    return tmp_path


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "--allow-empty", "-m", "x")


TABLE = Table(name="some", suite="cpu", workloads=("work",))


def _write(checkout: Path, **changed: Any) -> None:
    one = {"name": "ours", "left_out": "", "runs": [{}] * 5}
    absent = {"name": "theirs", "left_out": "it is not installed", "runs": []}
    workload = {"name": "work", "candidates": [one, absent]}
    report = {"commit": machine.commit(checkout), "quick": False, "workloads": [workload], **changed}
    (checkout / "benchmarks" / "results" / "some.json").write_text(json.dumps(report))


def test_a_table_is_current_until_something_measured_changes(checkout: Path) -> None:
    assert why_stale(TABLE) == "was never made"
    _write(checkout)
    assert why_stale(TABLE) == ""
    assert not machine.commit(checkout).endswith("+")  # results are not measured
    _commit(checkout)
    assert why_stale(TABLE) == ""
    (checkout / "energon_dali" / "loader.py").write_text("new")
    assert machine.commit(checkout).endswith("+")
    _commit(checkout)
    assert "since then energon_dali/loader.py has changed" in why_stale(TABLE)


def test_comments_and_rooms_around_the_loader_are_not_measured(checkout: Path) -> None:
    module = checkout / "energon_dali" / "loader.py"
    module.write_text('"""Old."""\nx = 1  # old\n')
    _commit(checkout)
    _write(checkout)
    module.write_text('"""New."""\n\nx = 1\n"""New."""\n')
    (checkout / "energon_dali" / "view").mkdir()
    (checkout / "energon_dali" / "view" / "app.py").write_text("new")
    _commit(checkout)
    assert why_stale(TABLE) == ""
    module.write_text("x = 2")
    _commit(checkout)
    assert "since then energon_dali/loader.py has changed" in why_stale(TABLE)


def test_nothing_that_is_measured_imports_what_is_not() -> None:
    rooms = [bench_all.ROOT / room for room in NOT_MEASURED]
    assert all(room.is_dir() for room in rooms)
    paths = {bench_all.ROOT / path for table in TABLES for path in measured_paths(table)}
    files = {file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])}
    inner = {file for file in files if not any(file.is_relative_to(room) for room in rooms)}
    imports = "|".join(room.replace("/", r"\.") for room in NOT_MEASURED)
    found = {
        file.name for file in inner if re.search(rf"import.*\b({imports})\b|\b({imports})\S* import", file.read_text())
    }
    assert found == {"__main__.py", "cli.py"}  # `python -m energon_dali`, and the command under Energon's name


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"commit": "abc+"}, "comes from changed files"),
        ({"commit": "0000000"}, "its commit"),
        ({"quick": True}, "a quick run"),
        ({"workloads": []}, "has no work"),
        (
            {"workloads": [{"name": "work", "candidates": [{"name": "a", "left_out": "", "runs": [{}] * 3}]}]},
            "3 of 5 repetitions",
        ),
    ],
)
def test_why_a_table_is_made_again(checkout: Path, changed: dict[str, Any], reason: str) -> None:
    _write(checkout, **changed)
    assert reason in why_stale(TABLE)


def test_only_tables_that_are_not_current_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(checkout)
    _commit(checkout)
    ran: list[str] = []

    def run(table: Table) -> bool:
        ran.append(table.name)
        return table.name != "fails"

    other, failing = (Table(name=name, suite="cpu") for name in ("other", "fails"))
    monkeypatch.setattr(bench_all, "TABLES", (TABLE, failing, other))
    monkeypatch.setattr(bench_all, "run", run)
    monkeypatch.setattr("benchmarks.tables.pages", list)
    assert bench_all.main([]) == 1  # one failed, and the next ran all the same
    assert ran == ["fails", "other"]
    assert bench_all.main(["some"]) == 0
    assert bench_all.main(["--list"]) == 1
    (checkout / "energon_dali" / "loader.py").write_text("new")
    with pytest.raises(SystemExit, match="Commit them first"):
        bench_all.main([])


def test_a_table_depends_on_what_its_candidates_import() -> None:
    paths = {table.name: set(measured_paths(table)) for table in TABLES}
    grain = "benchmarks/candidates/peer_grain.py"  # imported by the program of small, too
    assert [name for name in paths if grain in paths[name]] == ["peers", "small"]
    shared = {
        "energon_dali",
        "benchmarks/candidates/task.py",
        "benchmarks/workload_run.py",
        "benchmarks/data/recipe.py",
    }
    assert all(shared <= measured for measured in paths.values())
    assert "benchmarks/candidates/fast_path.py" in paths["peers"]  # imported by the programs, not named by a candidate
    assert "benchmarks/scale/streams.py" in paths["streams"]
    assert all((bench_all.ROOT / path).exists() for measured in paths.values() for path in measured)
