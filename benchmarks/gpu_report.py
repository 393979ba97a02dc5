"""`python -m benchmarks.gpu_report OUT_DIR --device gpu`: one page of all that `benchmarks/gpu.sh` left in a folder.

The page OUT_DIR/report.html holds the machine, what `doctor` found, the tests, and every ratio next to what it is
compared with and to what was wanted; where one falls short, with the three likeliest causes. It needs no other file.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.contestants import CEILING
from benchmarks.gpu_causes import likely_causes

SUITES = ("images", "mixed", "video", "vision", "ranks", "growth")
"""Stages whose results are workloads."""
_MOST_LINES = 30
"""Of a log or a failed test's message."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #d0d7de; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e4e8ec; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.track { background: #eef1f4; width: 12rem; height: .8rem; position: relative; }
.fill { background: #7f8b97; height: 100%; } .ok .fill { background: #2e8b57; } .missed .fill { background: #c0392b; }
.mark { position: absolute; top: -2px; bottom: -2px; width: 2px; background: #1b1f24; }
.missed td:first-child, .failed { color: #a5281b; font-weight: 600; }
.warning { background: #fff4d6; padding: .6rem 1rem; }
pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; font-size: 12px; } ol { margin: .2rem 0 1rem; }
"""


def main(arguments: list[str] | None = None) -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_report", description=__doc__)
    parser.add_argument("folder", type=Path, help="what benchmarks/gpu.sh was given")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: of a dry run")
    options = parser.parse_args(arguments)
    page = options.folder / "report.html"
    page.write_text("".join(render(options.folder, options.device)), encoding="utf-8")
    print(f"The report, which needs no other file: {page}")
    return 0


def render(folder: Path, device: str) -> Iterator[str]:
    """Yields the parts of the page.

    Args:
        folder: With the results of stages, some of which may be missing.
        device: "gpu", or "cpu" for those of a dry run.
    """
    reports = {name: found for name in SUITES if (found := read_json(folder / f"{device}-{name}.json"))}
    doctor = read_json(folder / f"{device}-doctor.json")
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>energon_dali on a GPU host</title><style>{_STYLE}"
    yield "</style><body><h1>energon_dali on a GPU host</h1>"
    yield from _notices(device, reports)
    yield from _machine(reports)
    yield from _stages(folder)
    yield from _shortfalls(reports, doctor)
    yield from _doctor(doctor)
    yield from _tests(folder / f"{device}-tests.xml")
    for name, report in reports.items():
        yield from _suite(name, report)
    yield from _observations(read_json(folder / f"{device}-observations.json"))
    yield from _logs(folder)
    yield "</body></html>\n"


def read_json(path: Path) -> dict[str, Any]:
    """Returns the content of a file; nothing if it is missing or not complete."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def shortfalls(reports: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Returns (stage, workload, bar or limit) of everything that was wanted and not reached.

    Args:
        reports: Results of suites by stage.
    """
    return [
        (name, work, judged)
        for name, report in reports.items()
        for work in report["workloads"]
        for judged in (*work["bars"], *work["limits"])
        if judged["met"] is False
    ]


def _notices(device: str, reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    if device == "cpu":
        yield "<p class=warning>A dry run: the CPU decoded. Its figures say nothing about a GPU.</p>"
    if any(report.get("quick") for report in reports.values()):
        yield "<p class=warning>A quick run, with small files and few repetitions: its figures mean nothing.</p>"


def _machine(reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    if not reports:
        return
    report = next(iter(reports.values()))
    machine = report["machine"]
    facts = [
        ("GPUs", ", ".join(machine["gpus"]) or "none"),
        ("processor", f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"),
        ("system", machine["system"]),
        ("load when the first stage began", ", ".join(map(str, machine["load_average"]))),
        ("commit", report["commit"] or "unknown"),
        ("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].get("own", {}).items())),
    ]
    yield "<h2>Machine</h2>" + _table((), facts)


def _stages(folder: Path) -> Iterator[str]:
    try:
        lines = (folder / "summary.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    yield f"<h2>Stages of the last call</h2><pre>{_text(chr(10).join(lines))}</pre>"


def _shortfalls(reports: dict[str, dict[str, Any]], doctor: dict[str, Any]) -> Iterator[str]:
    found = shortfalls(reports)
    judged = sum(
        one["met"] is not None
        for report in reports.values()
        for work in report["workloads"]
        for one in (*work["bars"], *work["limits"])
    )
    yield "<h2>What falls short</h2>"
    if not judged:
        yield "<p>Nothing was required: bars hold for a GPU, and the stages that have them must have run.</p>"
    elif not found:
        yield f"<p>Nothing: {judged} ratios and numbers were required, and reached.</p>"
    for name, work, one in found:
        value = one["ratio"] if "ratio" in one else one["value"]
        against = f" / {one['to']}" if "to" in one else ""
        yield (
            f"<h3 class=failed>{_text(one['of'])}{_text(against)}: {value:.2f}, wanted {_text(_bounds(one))}</h3>"
            f"<p>{_text(one['metric'])}; {_text(work['title'])} (stage {name}). The likeliest causes:</p><ol>"
        )
        for cause in likely_causes(work, one, doctor, reports[name]["machine"]):
            yield f"<li><b>{_text(cause.what)}</b> {_text(cause.evidence)} {_text(cause.remedy)}</li>"
        yield "</ol>"


def _doctor(doctor: dict[str, Any]) -> Iterator[str]:
    if not doctor:
        yield "<h2>Doctor</h2><p class=failed>No result: the stage has not run, or was stopped.</p>"
        return
    rows = [
        (one["state"], one["name"], one["found"], one["needed_for"], one["remedy"] if one["state"] != "ok" else "")
        for one in doctor["checks"]
    ]
    yield "<h2>Doctor</h2>" + _table(("", "what", "found", "needed for", "what to do"), rows)


def _tests(path: Path) -> Iterator[str]:
    yield "<h2>Tests</h2>"
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        yield "<p class=failed>No result: the stage has not run, or was stopped.</p>"
        return
    counts = {
        word: sum(int(suite.get(word, 0)) for suite in suites) for word in ("tests", "failures", "errors", "skipped")
    }
    yield f"<p>{', '.join(f'{count} {word}' for word, count in counts.items())}.</p>"
    for case in (case for suite in suites for case in suite.iter("testcase")):
        for kind in ("failure", "error"):
            wrong = case.find(kind)
            if wrong is not None:
                message = "\n".join((wrong.text or wrong.get("message") or "").splitlines()[-_MOST_LINES:])
                yield f"<h3 class=failed>{_text(case.get('name', ''))}</h3><pre>{_text(message)}</pre>"


def _suite(name: str, report: dict[str, Any]) -> Iterator[str]:
    yield f"<h2>Stage {name}</h2>"
    for work in report["workloads"]:
        yield f"<h3>{_text(work['title'])}</h3>"
        yield _rates(work)
        yield _bars(work)


def _rates(work: dict[str, Any]) -> str:
    """Returns the table of candidates; each bar is relative to the ceiling, or to the fastest."""
    medians = {
        one["name"]: one["summary"][work["metric"]]["median"]
        for one in work["candidates"]
        if work["metric"] in one["summary"]
    }
    whole = medians.get(CEILING) or max(medians.values(), default=0.0)
    rows = []
    for one in work["candidates"]:
        numbers = one["summary"]
        if one["left_out"] or one["name"] not in medians:
            rows.append((one["name"], (one["left_out"] or "not measured").splitlines()[0], "", "", "", ""))
            continue
        rows.append(
            (
                one["name"],
                f"{medians[one['name']]:.4g} {work['unit']}",
                _Html(_track(medians[one["name"]] / whole if whole else 0.0)),
                *(_number(numbers, metric) for metric in ("cpu_cores", "gpu_percent", "trainer_blocked_share")),
            )
        )
    return _table(("candidate", "rate", "of the ceiling", "CPU cores", "GPU %", "trainer blocked"), rows)


def _bars(work: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = []
    classes = []
    for bar in work["bars"]:
        if bar["ratio"] is None:
            continue
        metric = "" if bar["metric"] == work["metric"] else f" ({bar['metric']})"
        track = _Html(_track(bar["ratio"], bar["at_least"] or bar["at_most"]))
        rows.append((f"{bar['of']} / {bar['to']}{metric}", f"{bar['ratio']:.2f}", track, _bounds(bar), _verdict(bar)))
        classes.append({True: "ok", False: "missed", None: ""}[bar["met"]])
    for limit in work["limits"]:
        if limit["value"] is not None:
            rows.append(
                (f"{limit['metric']} of {limit['of']}", f"{limit['value']:.3g}", "", _bounds(limit), _verdict(limit))
            )
            classes.append({True: "ok", False: "missed", None: ""}[limit["met"]])
    return _table(("ratio", "", "", "wanted", ""), rows, classes) if rows else ""


def _observations(found: dict[str, Any]) -> Iterator[str]:
    if found.get("seen"):
        rows = [
            (test, "; ".join(f"{name}: {value}" for name, value in facts.items())[:1500])
            for test, facts in found["seen"].items()
        ]
        yield "<h2>What the tests observed</h2>" + _table(("test", "facts"), rows)


def _logs(folder: Path) -> Iterator[str]:
    """Yields the ends of the logs of stages that failed in the last call."""
    try:
        lines = (folder / "summary.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for stage in [line.split()[0] for line in lines if "FAILED" in line]:
        log = folder / f"{stage}.log"
        if log.is_file():
            text = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_MOST_LINES:])
            yield f"<h2>End of {stage}.log</h2><pre>{_text(text)}</pre>"


class _Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _text(value: object) -> str:
    return value if isinstance(value, _Html) else html.escape(str(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], classes: Sequence[str] = ()) -> str:
    lines = ["<table>"]
    if head:
        lines.append("<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>")
    for number, row in enumerate(rows):
        kind = f" class={classes[number]}" if classes and classes[number] else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    return "".join([*lines, "</table>"])


def _track(share: float, bound: float | None = None) -> str:
    """Returns a bar of 12 rem for 0 to 1.2, with a mark at a bound."""
    most = 1.2
    mark = "" if bound is None else f'<div class=mark style="left:{100 * min(bound, most) / most:.0f}%"></div>'
    width = 100 * max(0.0, min(share, most)) / most
    return f'<div class=track><div class=fill style="width:{width:.0f}%"></div>{mark}</div>'


def _number(summary: dict[str, Any], metric: str) -> str:
    return f"{summary[metric]['median']:.2g}" if metric in summary else ""


def _bounds(judged: dict[str, Any]) -> str:
    bounds = [f"at least {judged['at_least']:g}"] if judged["at_least"] is not None else []
    bounds += [f"at most {judged['at_most']:g}"] if judged["at_most"] is not None else []
    return " and ".join(bounds)


def _verdict(judged: dict[str, Any]) -> str:
    return {True: "ok", False: "MISSED", None: ""}[judged["met"]]


if __name__ == "__main__":
    sys.exit(main())
