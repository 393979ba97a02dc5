"""`python -m benchmarks.remote.plot IN.json OUT.png`: draws the suites `remote`, `scale` and `streams`."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.plot import INK, OTHERS, OURS, caution
from benchmarks.plot_growth import lines_of

_COLOURS = {
    "energon_dali": OURS,
    "energon_dali, local disk": "#8fc7b2",
    "planned packs": "#8fc7b2",
    "megatron-energon": "#d08a2f",
    "webdataset": "#7a68a6",
    "MosaicML Streaming": "#4c78a8",
    "LitData": "#b04a5a",
    "10 shards": "#8fc7b2",
    "10,000 shards": OURS,
    "1 stream, slices of 100": "#8fc7b2",
    "32 streams, slices of 100": OURS,
    "32 streams, whole shards": "#d08a2f",
}


def main(arguments: list[str] | None = None) -> int:
    """Writes the chart of a JSON file of `benchmarks.run remote` or `scale`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote.plot", description=__doc__)
    parser.add_argument("json", type=Path, help="results of benchmarks.run remote or scale")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot(json.loads(options.json.read_text()), options.png)
    return 0


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws one panel per workload: lines over the windows, and what has no window as a horizontal line.

    Args:
        report: What `benchmarks.run` wrote.
        path: PNG to write.

    Raises:
        ValueError: The report holds no lines.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [panel for panel in report["workloads"] if lines_of(panel)]
    if not panels:
        raise ValueError("The report holds no lines to draw: give the results of `benchmarks.run remote` or `scale`.")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (6.5 * columns, 3.4 * rows + 0.4)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    machine = report["machine"]
    shared = ", shared by client and server" if any(panel.get("storage") for panel in panels) else ""
    told = (
        f"{caution(report)}{machine['processor']}, {machine['cores']} cores{shared}; "
        f"{report['started'][:10]}, commit {report['commit']}. Points: median; bars: lowest to highest repetition."
    )
    figure.supxlabel(textwrap.fill(told, 90 * columns), fontsize=7, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axis: Any, panel: dict[str, Any]) -> None:
    lines = lines_of(panel)
    places = sorted({at for points in lines.values() for at, _ in points})
    highest = 0.0
    for name, points in lines.items():
        medians = [row["median"] for _, row in points]
        spread = [[row["median"] - row["low"] for _, row in points], [row["high"] - row["median"] for _, row in points]]
        axis.errorbar(
            [places.index(at) for at, _ in points],
            medians,
            yerr=spread,
            label=name,
            marker="o",
            markersize=4,
            capsize=2,
            linestyle="--" if "local" in name else "-",
            color=_COLOURS.get(name, OTHERS),
        )
        highest = max(highest, *(row["high"] for _, row in points))
    flat = [one for one in panel["candidates"] if not one["series"] and panel["metric"] in one["summary"]]
    for one, style in zip(flat, ("dashdot", "dotted", "dashed", "solid") * len(flat), strict=False):
        value = one["summary"][panel["metric"]]["median"]
        colour = next((colour for name, colour in _COLOURS.items() if one["name"].startswith(name)), OTHERS)
        axis.axhline(value, label=one["name"], color=colour, linestyle=style, linewidth=1.2)
        highest = max(highest, value)
    axis.set_xticks(range(len(places)), ["in order" if at == 0 else f"{at:,.0f}" for at in places])
    axis.set_xlabel(panel["x_label"], fontsize=8)
    axis.set_ylabel(panel["unit"], fontsize=8)
    axis.set_ylim(0, 1.08 * highest)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_title(panel["title"], fontsize=8, loc="left", color=INK)
    axis.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
