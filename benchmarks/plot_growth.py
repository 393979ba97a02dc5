"""`python -m benchmarks.plot_growth IN.json OUT.png`: draws the lines of the suite `growth`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.plot import INK, OTHERS, OURS, caution

_COLOURS = {"energon_dali DALI": OURS, "energon_dali SampleDecoder": "#d08a2f"}

Point = tuple[float, dict[str, float]]
"""Position of a point, and the median, minimum and maximum of its repetitions."""


def main(arguments: list[str] | None = None) -> int:
    """Writes the chart of a JSON file of `benchmarks.run growth`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_growth", description=__doc__)
    parser.add_argument("json", type=Path, help="results of benchmarks.run growth")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot(json.loads(options.json.read_text()), options.png)
    return 0


def lines_of(panel: dict[str, Any]) -> dict[str, list[Point]]:
    """Returns the points of each line of a workload, from left to right; for candidates with results.

    Args:
        panel: One workload of a report.
    """
    lines: dict[str, list[Point]] = {}
    for one in panel["candidates"]:
        if one["series"] and one["summary"]:
            lines.setdefault(one["series"], []).append((one["at"], one["summary"][panel["metric"]]))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items()}


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws one panel per workload.

    Args:
        report: What `benchmarks.run growth` wrote.
        path: PNG to write.

    Raises:
        ValueError: The report holds no lines.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [panel for panel in report["workloads"] if lines_of(panel)]
    if not panels:
        raise ValueError("The report holds no lines to draw: give the results of `benchmarks.run growth`.")
    rows = -(-len(panels) // 2)
    figure, axes = pyplot.subplots(rows, 2, figsize=(10, 3.1 * rows + 0.4), squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    machine = report["machine"]
    gpus = ", ".join(str(gpu) for gpu in machine.get("gpus", [])) if report["device"] == "gpu" else ""
    place = gpus or machine["processor"]
    figure.supxlabel(
        f"{caution(report)}on the {report['device'].upper()}: {place}, {machine['cores']} cores; "
        f"{report['started'][:10]}, commit {report['commit']}. Points: median; bars: lowest to highest repetition.",
        fontsize=7,
        color=INK,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axis: Any, panel: dict[str, Any]) -> None:
    places = sorted({at for points in lines_of(panel).values() for at, _ in points})
    for name, points in lines_of(panel).items():
        medians = [row["median"] for _, row in points]
        spread = [[row["median"] - row["low"] for _, row in points], [row["high"] - row["median"] for _, row in points]]
        # By rank, not by value: positions range from 0 to 10,000.
        axis.errorbar(
            [places.index(at) for at, _ in points],
            medians,
            yerr=spread,
            label=name,
            marker="o",
            markersize=4,
            capsize=2,
            color=_COLOURS.get(name, OTHERS),
        )
    axis.set_xticks(range(len(places)), [f"{place:,.0f}" for place in places])
    axis.set_xlabel(panel["x_label"], fontsize=8)
    axis.set_ylabel(panel["unit"], fontsize=8)
    axis.set_ylim(0, 1.08 * max(row["high"] for points in lines_of(panel).values() for _, row in points))
    axis.set_title(f"Throughput against {panel['x_label']}", fontsize=9, loc="left", color=INK)
    axis.legend(fontsize=7, frameon=False)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
