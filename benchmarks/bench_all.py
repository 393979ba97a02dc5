"""`python -m benchmarks.bench_all`: runs all benchmarks of the documentation on one commit, and writes its figures.

Each table is a file of benchmarks/results. One that is current is not run again, so that an interrupted run continues
with the next table. A table is current if no code that it measures has changed since its commit, and every candidate
ran as often as it should. It measures the package, but for the rooms around the loader (the command line, tasks, the
viewer), and the modules of benchmarks that its candidates import. `--list` shows which tables are current.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.environments import ROOT
from benchmarks.machine import commit
from benchmarks.run import SUITES

REPETITIONS = 5
"""Runs of each candidate, in turn with the others."""

_SHARED = ("energon_dali", "kernels", "setup.py", "pyproject.toml")
"""What every table measures, besides modules of benchmarks."""
NOT_MEASURED = ("energon_dali/cli", "energon_dali/tasks", "energon_dali/view")
"""Rooms of the package that no loader imports, and no candidate."""
_RUNNERS = ("benchmarks.workload_run", "benchmarks.candidates.__main__")
"""Modules that run every candidate."""
_SUITE_MODULES = {
    "remote": "benchmarks.remote.workloads",
    "scale": "benchmarks.scale.workloads",
    "streams": "benchmarks.scale.streams",
}
"""Modules of suites whose names differ from the suite's."""
_SOURCES = Path(__file__).resolve().parent.parent
"""Folder of the modules that run, whatever repository a test puts in the place of ROOT."""
_RUN = (sys.executable, "-m", "benchmarks.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file of results, and how it is made."""

    name: str
    """Name of the file, without its suffix."""
    suite: str
    """Suite of `benchmarks.run`."""
    workloads: tuple[str, ...] = ()
    """Workloads of the suite; empty: all that run without being named."""
    plot: str = "benchmarks.plot"
    """Module that draws docs/images/NAME.png; "" for none."""

    @property
    def path(self) -> Path:
        """The file."""
        return tables.RESULTS / f"{self.name}.json"

    def command(self, json_path: Path) -> list[str]:
        """Returns the command that makes it."""
        only = ["--only", *self.workloads] if self.workloads else []
        limits = ["--repetitions", str(REPETITIONS), "--minutes", "600"]
        return [*_RUN, self.suite, *only, *limits, "--json", str(json_path)]


TABLES = (
    Table(name="peers", suite="peers"),
    Table(name="cpu", suite="cpu", workloads=("uint8", "fused224", "restore", "prepare", "import")),
    Table(name="small", suite="small", workloads=("small-json", "small-text", "small-blend")),
    Table(name="first-batch", suite="first-batch"),
    Table(name="decode-scale", suite="cpu", workloads=("scaled-hd", "scaled-12mp")),
    Table(name="video", suite="video"),
    Table(name="vision", suite="vision"),
    Table(name="blend", suite="cpu", workloads=("blend-cpu", "blend-restore", "blend")),
    Table(name="trainer", suite="trainer"),
    Table(name="packing", suite="packing", workloads=("packing-1000", "packing-saving")),
    Table(name="scale", suite="scale", workloads=("scale-100m", "scale-blend"), plot="benchmarks.remote.plot"),
    Table(
        name="remote",
        suite="remote",
        workloads=("packs-20ms", "jpeg-20ms", "decoded-20ms", "text-20ms"),
        plot="benchmarks.remote.plot",
    ),
    Table(name="remote-latency", suite="remote", workloads=("jpeg-0ms", "jpeg-100ms"), plot=""),
    Table(name="remote-blend", suite="remote", workloads=("opening-20ms",), plot=""),
    Table(name="streams", suite="streams", plot="benchmarks.remote.plot"),
)
"""In the order in which they run: what most readers look at comes first."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the tables that are not current; returns 1 if one failed or, with --list, is not current."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_all", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="TABLE", help=f"tables to run: {', '.join(t.name for t in TABLES)}")
    parser.add_argument("--list", action="store_true", help="show which tables are current, and run nothing")
    parser.add_argument("--quick", action="store_true", help="a smoke test of each table, which writes no results")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {table.name for table in TABLES}
    if unknown:
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    chosen = [table for table in TABLES if not options.names or table.name in options.names]
    if options.quick:
        return max(subprocess.run([*_RUN, table.suite, "--quick"], cwd=ROOT).returncode for table in chosen)
    reasons = {table.name: why_stale(table) for table in chosen}
    for table in chosen:
        print(f"{table.name:14} {reasons[table.name] or 'current'}", flush=True)
    if options.list:
        return int(any(reasons.values()))
    if commit(ROOT).endswith("+"):
        raise SystemExit(
            "Files that are measured differ from the last commit. Commit them first: results name a commit."
        )
    failed = [table.name for table in chosen if reasons[table.name] and not run(table)]
    tables.main([])
    if failed:
        print(f"Failed: {', '.join(failed)}. The same command tries these again.")
    return int(bool(failed))


def run(table: Table) -> bool:
    """Makes one table and its chart; returns whether it succeeded. Results of a failed run are kept apart."""
    unfinished = ROOT / ".cache" / "bench-all" / f"{table.name}.json"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run(table.command(unfinished), cwd=ROOT).returncode:
        return False
    unfinished.replace(table.path)
    if not table.plot:
        return True
    image = ROOT / "docs" / "images" / f"{table.name}.png"
    return not subprocess.run([sys.executable, "-m", table.plot, str(table.path), str(image)], cwd=ROOT).returncode


def why_stale(table: Table) -> str:
    """Returns why a table has to be made again; "" if it is current."""
    if not table.path.is_file():
        return "was never made"
    report = json.loads(table.path.read_text())
    if report["commit"].endswith("+") or not report["commit"]:
        return f"comes from changed files ({report['commit'] or 'no commit'})"
    if report.get("quick"):
        return "comes from a quick run"
    missing = set(table.workloads) - {workload["name"] for workload in report["workloads"]}
    if missing:
        return f"has no {', '.join(sorted(missing))}"
    fewest = min(_repetitions(report["workloads"]), default=0)
    if fewest < REPETITIONS:
        return f"has candidates with {fewest} of {REPETITIONS} repetitions"
    changed = _changed_since(report["commit"], measured_paths(table))
    return f"was measured at {report['commit']}; since then {changed} has changed" if changed else ""


def _repetitions(workloads: Sequence[dict[str, Any]]) -> list[int]:
    return [len(one["runs"]) for workload in workloads for one in workload["candidates"] if not one["left_out"]]


def measured_paths(table: Table) -> list[str]:
    """Returns what a table depends on, relative to the repository: the package, and modules of benchmarks.

    These are the suite's module, the programs of the chosen workloads, and all that they import.
    """
    chosen = [one for one in SUITES[table.suite] if not table.workloads or one.name in table.workloads]
    programs = {candidate.program for one in chosen for candidate in one.candidates}
    suite = _SUITE_MODULES.get(table.suite, f"benchmarks.{table.suite.replace('-', '_')}")
    modules = {*_RUNNERS, suite, *(f"benchmarks.candidates.{program}" for program in programs)}
    ahead = list(modules)
    while ahead:
        for name in _imports_of(ahead.pop()) - modules:
            modules.add(name)
            ahead.append(name)
    return [*_SHARED, *sorted(_path_of(name) for name in modules)]


def _imports_of(module: str) -> set[str]:
    """Returns the modules of benchmarks that a module imports by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((_SOURCES / _path_of(module)).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "benchmarks":
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return {name for name in found if (_SOURCES / _path_of(name)).is_file()}


def _path_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _changed_since(measured: str, paths: Sequence[str]) -> str:
    """Returns the first of some paths whose code differs from a commit, or "its commit" where git lacks it."""
    without = [f":(exclude){room}" for room in NOT_MEASURED]
    command = [*_git(), "diff", "--name-only", measured, "HEAD", "--", *paths, *without]
    diff = subprocess.run(command, capture_output=True, text=True)
    if diff.returncode:
        return "its commit"
    return next((path for path in diff.stdout.splitlines() if _code(measured, path) != _code("HEAD", path)), "")


def _code(commit: str, path: str) -> str:
    """Returns the content of a file in a commit; of Python without comments and docstrings."""
    text = subprocess.run([*_git(), "show", f"{commit}:{path}"], capture_output=True, text=True).stdout
    if not path.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _git() -> list[str]:
    return ["git", "-C", str(ROOT)]


if __name__ == "__main__":
    sys.exit(main())
