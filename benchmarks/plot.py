"""`python -m benchmarks.plot IN.json OUT.png`: draws the results of a run, with its machine."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

OURS, OTHERS, INK = "#2a7f62", "#9aa5b1", "#222222"
_VERSIONS = ("torch", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "pillow")

_LINE = 145
"""Characters of a title across the whole chart, of which the longest name takes about as many as it has."""


def main(arguments: list[str] | None = None) -> int:
    """Writes the chart of a JSON file of `benchmarks.run`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("json", type=Path, help="results of benchmarks.run")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot(json.loads(options.json.read_text()), options.png)
    return 0


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws one row of bars per candidate and one panel per workload.

    Args:
        report: What `benchmarks.run` wrote.
        path: PNG to write.

    Raises:
        ValueError: The report holds no numbers.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [panel for panel in report["workloads"] if _rows(panel)]
    if not panels:
        raise ValueError("The report holds no numbers to draw: every candidate was left out.")
    heights = [len(_rows(panel)) + 1.6 for panel in panels]
    size = (10, 0.33 * sum(heights) + 0.9)
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    longest = max(len(name) for panel in panels for name, _ in _rows(panel))
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        _draw(axis, panel, _LINE - longest)
    figure.supxlabel(_caption(report), fontsize=7, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _rows(panel: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Returns (name, summary) of each candidate that has numbers, the best at the top."""
    rows = [(one["name"], one["summary"][panel["metric"]]) for one in panel["candidates"] if one["summary"]]
    return sorted(rows, key=lambda row: row[1]["median"], reverse=panel["better"] == "lower")


def is_ours(candidate: dict[str, Any]) -> bool:
    """Returns whether a candidate of a report is this package; suites that compare only its settings do not name it."""
    return candidate["name"].startswith(("energon_dali", "energon-dali")) or "decode_process" in candidate["options"]


def _draw(axis: Any, panel: dict[str, Any], title_length: int) -> None:
    rows = _rows(panel)
    names = [name for name, _ in rows]
    own = {one["name"] for one in panel["candidates"] if is_ours(one)}
    medians = [row["median"] for _, row in rows]
    spread = [[row["median"] - row["low"] for _, row in rows], [row["high"] - row["median"] for _, row in rows]]
    colours = [OURS if name in own else OTHERS for name in names]
    axis.barh(names, medians, xerr=spread, color=colours, error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": INK})
    for position, (_, row) in enumerate(rows):
        axis.annotate(
            f"{row['median']:.3g}" if row["median"] < 100 else f"{row['median']:.0f}",
            (row["high"], position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    unit = f"{panel['unit']}, " if panel["unit"] else ""
    title = textwrap.fill(f"{panel['title']} ({unit}{panel['better']} is better)", title_length)
    axis.set_title(title, fontsize=9, loc="left", color=INK)
    axis.margins(x=0.12)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def caution(report: dict[str, Any]) -> str:
    """Returns the heading of a chart for a report without measurements; "" for any other."""
    return "A quick run: these figures mean nothing. " if report.get("quick") else ""


def _caption(report: dict[str, Any]) -> str:
    machine = report["machine"]
    own = report["versions"].get("own", {})
    versions = ", ".join(f"{name} {own[name]}" for name in _VERSIONS if name in own)
    gpus = machine.get("gpus", []) if report.get("device") == "gpu" else []
    return (
        f"{caution(report)}{'; '.join([*gpus, machine['processor']])}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {versions}; {report['started'][:10]}, commit {report['commit']}. "
        "Bars: median; lines: lowest to highest repetition."
    )


if __name__ == "__main__":
    sys.exit(main())
