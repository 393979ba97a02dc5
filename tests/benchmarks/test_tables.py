"""Figures of pages come from the results that they name, and the check finds those that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.bench_all import TABLES
from benchmarks.run import SUITES
from benchmarks.tables import MissingFigureError, fill
from tools import check_figures


def candidate(name: str, *speeds: float) -> dict[str, Any]:
    spread = {"median": speeds[len(speeds) // 2], "low": min(speeds), "high": max(speeds)} if speeds else {}
    return {
        "name": name,
        "runs": [{"samples_per_second": speed, "memory_mib": 12.0} for speed in speeds],
        "summary": {"samples_per_second": spread, "memory_mib": {"median": 12.0, "low": 12.0, "high": 12.0}}
        if speeds
        else {},
    }


def bar(ratio: float, at_least: float | None, met: bool | None) -> dict[str, Any]:
    ends = {"of": "ours", "to": "theirs", "metric": "samples_per_second", "difference": False}
    return {**ends, "ratio": ratio, "ratios": [ratio, 2 * ratio], "at_least": at_least, "at_most": None, "met": met}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with one file of results."""
    workload = {
        "name": "work",
        "title": "Images to batches",
        "metric": "samples_per_second",
        "candidates": [candidate("ours", 900, 1234, 2000), candidate("theirs", 450, 617, 500), candidate("absent")],
        "bars": [bar(2.0, 3.0, False), bar(1.5, 1.0, True), bar(1.1, None, None)],
        "limits": [{"of": "ours", "metric": "memory_mib", "value": 12.0, "at_least": None, "at_most": 8, "met": False}],
    }
    report = {
        "started": "2026-11-26T09:19:31+00:00",
        "commit": "abc1234",
        "workloads": [workload],
        "rows": [{"name": "a", "best": 0.123456, "less": 0.1}, {"name": "b", "best": 7, "less": 0}],
    }
    (tmp_path / "some.json").write_text(json.dumps(report))
    return tmp_path


def test_a_table_has_a_row_per_candidate_with_results(results: Path) -> None:
    page = "a\n<!-- figures some.json work samples_per_second memory_mib -->\nold\n<!-- end of figures -->\nb\n"
    filled = fill(page, results)
    assert "| ours | 1,234 (900 to 2,000) | 12 |\n" in filled
    assert "\n**Images to batches**\n\n| | samples/s | memory, MiB |\n|---|---:|---:|\n" in filled
    assert "old" not in filled
    assert "absent" not in filled
    assert filled.startswith("a\n<!-- figures")
    assert filled.endswith("<!-- end of figures -->\nb\n")
    assert fill(filled, results) == filled


def test_a_table_says_when_and_how_often_it_was_measured(results: Path) -> None:
    page = "<!-- figures some.json work samples_per_second -->\n<!-- end of figures -->"
    assert "\n*2026-11-26, commit abc1234, 3 repetitions.*\n" in fill(page, results)
    report = json.loads((results / "some.json").read_text())
    del report["workloads"][0]["candidates"][0]["runs"][1:]
    (results / "some.json").write_text(json.dumps({**report, "commit": "abc1234+"}))
    assert "\n*2026-11-26, commit abc1234 with changes, 1 to 3 repetitions.*\n" in fill(page, results)


def test_a_table_of_the_entries_of_a_list(results: Path) -> None:
    page = (
        "<!-- rows some.json rows {}column:which=name 'column:best, ms=best - less*1000' -->\n<!-- end of figures -->"
    )
    assert "| which | best, ms |\n|---|---:|\n| a | 23.5 |\n| b | 7,000 |\n" in fill(page.format(""), results)
    assert "| a |" not in fill(page.format("where:name=b "), results)
    assert "Not measured yet" in fill(page.format("where:name=c "), results)


def test_ratios_show_targets_and_misses(results: Path) -> None:
    filled = fill("<!-- ratios some.json work -->\n<!-- end of figures -->", results)
    assert "| ours / theirs | at least 3 | 2 (2 to 4) | **missed** |\n" in filled
    assert "| ours / theirs | at least 1 | 1.5 (1.5 to 3) |  |\n" in filled
    assert "| ours / theirs |  | 1.1 (1.1 to 2.2) |  |\n" in filled
    assert "| ours: memory, MiB | at most 8 | 12 | **missed** |\n" in filled
    assert "Images to batches" not in filled
    both = fill("<!-- ratios some.json work work -->\n<!-- end of figures -->", results)
    assert both.count("| **Images to batches** | | | |\n| ours / theirs |") == 2


@pytest.mark.parametrize("names", ["none.json work samples_per_second", "some.json none samples_per_second"])
def test_a_table_without_results_says_so(results: Path, names: str) -> None:
    assert "Not measured yet: `make bench-all" in fill(f"<!-- figures {names} -->\n<!-- end of figures -->", results)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("some.json work ours samples_per_second", "1,234"),
        ("some.json work ours / theirs samples_per_second", "2"),  # the median of 2, 2 and 4
        ("some.json rows 0 best", "0.123"),
        ("some.json rows name=b best", "7"),
    ],
)
def test_a_figure_in_a_sentence(results: Path, names: str, expected: str) -> None:
    text = f"It is <!-- figure {names} -->0<!-- end of figure --> here."
    assert fill(text, results) == text.replace("-->0<", f"-->{expected}<")


@pytest.mark.parametrize(
    "names",
    ["some.json rows 2 best", "some.json rows name=c best", "some.json rows", "some.json work absent memory_mib"],
)
def test_a_figure_that_is_missing(results: Path, names: str) -> None:
    with pytest.raises(MissingFigureError, match=r"some\.json"):
        fill(f"<!-- figure {names} -->0<!-- end of figure -->", results)


def test_every_table_of_the_pages_is_one_that_is_made() -> None:
    made = {table.path.name: table for table in TABLES}
    for page in tables.pages():
        for match in tables.TABLE.finditer(page.read_text()):
            file, *names = match["names"].split()
            if match["kind"] == "rows":
                assert (tables.RESULTS / file).exists()
                continue
            known = {workload.name for workload in SUITES[made[file].suite]}
            assert set(names if match["kind"] == "ratios" else names[:1]) <= known, match[0]
            assert match["kind"] == "ratios" or set(names[1:]) <= tables.HEADINGS.keys(), match[0]


def test_workloads_of_the_tables_exist() -> None:
    for table in TABLES:
        assert set(table.workloads) <= {workload.name for workload in SUITES[table.suite]}


def test_a_stale_figure_is_found(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    monkeypatch.setattr(check_figures, "fill", lambda text: fill(text, results))
    stale = "<!-- figure some.json rows 0 best -->0.124<!-- end of figure -->"
    assert "should be" in check_figures.faults_of("docs/any.md", stale)[0]
    assert check_figures.faults_of("docs/any.md", stale.replace("0.124", "0.123")) == []
    assert "nothing at" in check_figures.faults_of("docs/any.md", stale.replace("rows 0", "rows 9"))[0]


def test_a_measurement_without_a_mark_is_found() -> None:
    code = "```\n7 %\n```"
    text = (
        f"# In 5 ms\nIt takes 12.5 ms, `9 ms` in code, and is 3.1 times as fast.\n{code}\n[x](a-4%.md) 1,234 images/s"
    )
    assert check_figures.unmarked(text) == ["12.5 ms", "3.1 times", "1,234 images/s"]
    assert len(check_figures.faults_of("README.md", text)) == 3
    assert check_figures.faults_of("docs/any.md", text) == []


def test_a_page_that_names_results_needs_a_mark() -> None:
    text = "See `benchmarks/results/some.json`."
    assert "no mark has a figure of it" in check_figures.faults_of("docs/any.md", text)[0]
    assert check_figures.faults_of("docs/benchmarks-log.md", text) == []
