"""`python -m benchmarks.tables [PAGE.md ...]`: writes the figures of pages from the results that they name.

A page marks what is replaced. FILE is one of benchmarks/results, and names with spaces are quoted:

    <!-- figures FILE WORKLOAD METRIC [METRIC ...] -->   its title, and a table with a row per candidate
    <!-- ratios FILE WORKLOAD [WORKLOAD ...] -->         a table of ratios and limits, and whether their targets are met
    <!-- rows FILE [KEY ...] [where:NAME=VALUE ...] column:HEADING=VALUE ... -->
                                                         a table with a row per entry of the list at KEY
    <!-- end of figures -->
    <!-- figure FILE WORKLOAD CANDIDATE METRIC -->12<!-- end of figure -->
    <!-- figure FILE WORKLOAD CANDIDATE / CANDIDATE METRIC -->1.2<!-- end of figure -->
    <!-- figure FILE KEY [KEY ...] -->1.2<!-- end of figure -->

The last three are numbers in sentences: a median, a median of ratios, and any value by its keys in the file. VALUE is
NAME[.NAME ...], or the difference of two, and may end with *FACTOR. A key is the name of a field, the position in a
list, or `name=value` for the first entry of a list that has it.
`tools/check_figures.py` holds pages to this.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TABLE = re.compile(
    r"<!-- (?P<kind>figures|ratios|rows) (?P<names>[^>]*?) -->\n(?P<body>.*?)<!-- end of figures -->", re.DOTALL
)
FIGURE = re.compile(r"<!-- figure (?P<names>[^>]*?) -->(?P<body>[^<]*)<!-- end of figure -->")
HEADINGS = {
    "samples_per_second": "samples/s",
    "files_per_second": "files/s",
    "files_per_cpu_second": "files per second of CPU",
    "packs_per_second": "packs/s",
    "megabytes_per_second": "MB/s",
    "cpu_milliseconds_per_sample": "ms of CPU per sample",
    "cpu_milliseconds_per_pack": "ms of CPU per pack",
    "cpu_microseconds_per_sample": "us of CPU per sample",
    "memory_mib": "memory, MiB",
    "fill": "fill",
    "saving_milliseconds": "saving a state, ms",
    "state_bytes": "state, bytes",
    "restored_pack_seconds": "restored pack, s",
    "import_seconds": "importing, s",
    "one_over_blend": "CPU time of one dataset / blend",
    "first_batch_seconds": "first batch, s",
    "first_batch_cpu_seconds": "first batch, s of CPU",
    "first_batch_cold_seconds": "first batch, s",
    "first_batch_restored_seconds": "first batch, restored, s",
    "restored_over_fresh": "restored / fresh",
    "start_seconds": "opening and first batch, s",
    "start_cpu_seconds": "opening and first batch, s of CPU",
    "trainer_turns_per_second": "turns of the trainer per s",
    "samples_per_second_without_server": "server's time deducted",
    "client_cpu_microseconds_per_sample": "client, us of CPU per sample",
    "server_cpu_microseconds_per_sample": "server, us of CPU per sample",
    "bytes_fetched_over_wanted": "bytes fetched / wanted",
    "requests_in_flight": "requests in flight",
    "requests_per_sample": "requests per sample",
    "opening_seconds": "opening, s",
    "opening_requests": "requests until open",
    "uss_mib": "private memory, MiB",
    "uss_without_mapped_index_mib": "without the mapped index, MiB",
    "first_sample_seconds": "first sample, s",
    "opening_cpu_seconds": "opening, s of CPU",
    "cpu_milliseconds_per_further_stream": "each further stream's first batch, ms of CPU",
    "added_mib": "memory added, MiB",
    "files_opened_per_sample": "files opened per sample",
}


class MissingFigureError(Exception):
    """A mark names results that do not exist; the message says which."""


def main(arguments: list[str] | None = None) -> int:
    """Rewrites the figures of pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="*", help="pages in Markdown (default: README.md and all of docs/)")
    for page in parser.parse_args(arguments).pages or pages():
        text = page.read_text()
        filled = fill(text)
        if filled != text:
            page.write_text(filled)
            print(f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}: figures written.")
    return 0


def pages() -> list[Path]:
    """Returns README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill(page: str, results: Path = RESULTS) -> str:
    """Returns a page with its marked figures as the results have them.

    Args:
        page: Markdown.
        results: Folder of the results.

    Raises:
        MissingFigureError: A mark in a sentence names something that the results do not have. A table says so itself.
    """
    read = functools.partial(_read, results)

    def table(match: re.Match[str]) -> str:
        file, *names = shlex.split(match["names"])
        try:
            report = read(file)
            if match["kind"] == "rows":
                body = rows_of(report, file, names)
            elif match["kind"] == "ratios":
                workloads = [_workload(report, file, name) for name in names]
                body = f"{ratios_of(workloads)}\n{origin_of(report, workloads)}"
            else:
                workload = _workload(report, file, names[0])
                body = f"**{workload['title']}**\n\n{table_of(workload, names[1:])}\n{origin_of(report, [workload])}"
        except MissingFigureError:
            body = f"Not measured yet: `make bench-all TABLES={Path(file).stem}` does it.\n"
        return f"<!-- {match['kind']} {match['names']} -->\n\n{body}\n<!-- end of figures -->"

    def figure(match: re.Match[str]) -> str:
        file, *names = shlex.split(match["names"])
        return f"<!-- figure {match['names']} -->{shown(value_of(read(file), file, names))}<!-- end of figure -->"

    return FIGURE.sub(figure, TABLE.sub(table, page))


def _read(results: Path, file: str) -> Any:
    path = results / file
    if not path.is_file():
        raise MissingFigureError(f"{file} is not in {results}.")
    return json.loads(path.read_text())


def _workload(report: Any, file: str, name: str) -> dict[str, Any]:
    for workload in report["workloads"]:
        if workload["name"] == name:
            found: dict[str, Any] = workload
            return found
    raise MissingFigureError(f"{file} has no workload {name!r}.")


def value_of(report: Any, file: str, names: list[str]) -> float:
    """Returns what a mark in a sentence names: a median, a median of ratios, or a value by its keys.

    Args:
        report: The results.
        file: Their name, for messages.
        names: The words of the mark after the file.

    Raises:
        MissingFigureError: There is no such value.
    """
    if isinstance(report, dict) and names[0] in [one["name"] for one in report.get("workloads", ())]:
        workload = _workload(report, file, names[0])
        if len(names) == 5 and names[2] == "/":
            return statistics.median(_ratios(workload, file, names[1], names[3], names[4]))
        if len(names) == 3:
            return float(statistics.median(_values(workload, file, names[1], names[2])))
    value = _at(report, file, names)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MissingFigureError(f"{file} has no number at {' '.join(names)}.")
    return float(value)


def _at(value: Any, file: str, keys: list[str]) -> Any:
    for key in keys:
        try:
            value = _entry(value, key)
        except (KeyError, IndexError, ValueError, TypeError):
            raise MissingFigureError(f"{file} has nothing at {' '.join(keys)}: {key!r} is missing.") from None
    return value


def _entry(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value[key]
    name, equals, wanted = key.partition("=")
    if not equals:
        return value[int(key)]
    return next(one for one in [*value, None] if one is None or str(one.get(name)) == wanted)


def _values(workload: dict[str, Any], file: str, candidate: str, metric: str) -> list[float]:
    for one in workload["candidates"]:
        if one["name"] == candidate:
            values = [run[metric] for run in one["runs"] if metric in run]
            if values:
                return values
    raise MissingFigureError(f"{file}, {workload['name']}: {candidate!r} has no {metric}.")


def _ratios(workload: dict[str, Any], file: str, of: str, to: str, metric: str) -> list[float]:
    both = zip(_values(workload, file, of, metric), _values(workload, file, to, metric), strict=False)
    return [one / other for one, other in both]


def table_of(workload: dict[str, Any], metrics: list[str]) -> str:
    """Returns a table with a row per candidate that has results; the first metric with its lowest and highest."""
    lines = ["| | " + " | ".join(HEADINGS[metric] for metric in metrics) + " |", "|---|" + "---:|" * len(metrics)]
    for one in workload["candidates"]:
        if not one["summary"]:
            continue
        cells = []
        for number, metric in enumerate(metrics):
            found = one["summary"].get(metric)
            if found is None:
                cells.append("")
            else:
                cells.append(_with_spread(found) if number == 0 else shown(found["median"]))
        lines.append(f"| {one['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def ratios_of(workloads: list[dict[str, Any]]) -> str:
    """Returns a table of the ratios and limits of workloads, and whether their targets are met."""
    lines = ["| | target | measured | |", "|---|---|---:|---|"]
    for workload in workloads:
        if len(workloads) > 1:  # their candidates may have the same names
            lines.append(f"| **{workload['title']}** | | | |")
        for bar in workload["bars"]:
            if bar["ratio"] is not None:
                metric = "" if bar["metric"] == workload["metric"] else f", {HEADINGS[bar['metric']]}"
                sign = "-" if bar.get("difference") else "/"
                found = {"median": bar["ratio"], "low": min(bar["ratios"]), "high": max(bar["ratios"])}
                lines.append(f"| {bar['of']} {sign} {bar['to']}{metric} | {_judged(bar, _with_spread(found))} |")
        for limit in workload["limits"]:
            if limit["value"] is not None:
                name = f"{limit['of']}: {HEADINGS[limit['metric']]}"
                lines.append(f"| {name} | {_judged(limit, shown(limit['value']))} |")
    return "\n".join(lines) + "\n"


def origin_of(report: dict[str, Any], workloads: list[dict[str, Any]]) -> str:
    """Returns the line under a table: when its figures were measured, at which commit, and how often."""
    counts = sorted({len(one["runs"]) for workload in workloads for one in workload["candidates"] if one["summary"]})
    often = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    commit = f"commit {report['commit'].rstrip('+')}{' with changes' if report['commit'].endswith('+') else ''}"
    return f"*{report['started'][:10]}, {commit}, {often} repetition{'' if counts[-1] == 1 else 's'}.*\n"


def rows_of(report: Any, file: str, words: list[str]) -> str:
    """Returns a table with a row per entry of a list of a report.

    Args:
        report: The results.
        file: Their name, for messages.
        words: The words of the mark after the file.

    Raises:
        MissingFigureError: There is no such list, an entry lacks a column, or no entry is left.
    """
    conditions = [word.removeprefix("where:").split("=", 1) for word in words if word.startswith("where:")]
    columns = [word.removeprefix("column:").rsplit("=", 1) for word in words if word.startswith("column:")]
    entries = _at(report, file, [word for word in words if not word.startswith(("where:", "column:"))])
    if isinstance(entries, dict):
        entries = [{"": name, **entry} for name, entry in entries.items()]
    rows = [
        [_cell(entry, file, path) for _, path in columns]
        for entry in entries
        if all(str(entry[name]) == value for name, value in conditions)
    ]
    if not rows:
        raise MissingFigureError(f"{file} has no entries with {dict(conditions)}.")
    headings = [heading for heading, _ in columns]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _cell(entry: Any, file: str, path: str) -> str:
    names, _, factor = path.partition("*")
    values = [_at(entry, file, name.split(".")) for name in names.split(" - ")]
    if isinstance(values[0], str):
        return values[0]
    return shown((values[0] - sum(values[1:])) * float(factor or 1))


def _judged(judged: dict[str, Any], measured: str) -> str:
    targets = [f"at least {judged['at_least']:g}"] if judged["at_least"] is not None else []
    targets += [f"at most {judged['at_most']:g}"] if judged["at_most"] is not None else []
    return f"{' and '.join(targets)} | {measured} | {'**missed**' if judged['met'] is False else ''}"


def _with_spread(found: dict[str, float]) -> str:
    median, low, high = (shown(found[name]) for name in ("median", "low", "high"))
    return median if low == high else f"{median} ({low} to {high})"


def shown(value: float) -> str:
    """Returns a figure with three digits, or in whole numbers from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
