"""`python -m benchmarks.plot_kernels IN.json OUT.png`: the kernels' share of a copy's bandwidth, and their speed-up."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.kernels import LARGE_SHARE
from benchmarks.plot import INK, OTHERS, OURS

_PANELS = {
    "large": ("share_of_copy", "share of a copy's bandwidth, large inputs (gray: bound by arithmetic)", LARGE_SHARE),
    "small": ("call_speedup", "times as fast as the fastest PyTorch, small inputs", 1.0),
}
"""By size of the inputs: what is drawn, its title, and the target."""


def main(arguments: list[str] | None = None) -> int:
    """Writes the chart of a JSON file of `benchmarks.kernels`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_kernels", description=__doc__)
    parser.add_argument("json", type=Path, help="results of benchmarks.kernels")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot(json.loads(options.json.read_text()), options.png)
    return 0


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws one panel per size of inputs.

    Args:
        report: What `benchmarks.kernels` wrote.
        path: PNG to write.

    Raises:
        ValueError: The report holds no numbers.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = {size: [case for case in report["cases"] if case["size"] == size and case["ways"]] for size in _PANELS}
    panels = {size: cases for size, cases in panels.items() if cases}
    if not panels:
        raise ValueError("The report holds no numbers to draw: no case was right.")
    heights = [len(cases) + 1.6 for cases in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(10, 0.33 * sum(heights) + 0.9),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (size, cases) in zip(axes[:, 0], panels.items(), strict=True):
        _draw(axis, cases[::-1], *_PANELS[size])
    machine = report["machine"]
    what = "A dry run: these figures say nothing of a GPU's kernels. " if report["dry_run"] else ""
    place = machine["processor"] if report["device"] == "cpu" else "; ".join(machine["gpus"])
    torch, day = report["versions"].get("torch", ""), report["started"][:10]
    caption = f"{what}Dotted: to be reached. {place}; torch {torch}; {day}, commit {report['commit']}"
    figure.supxlabel(caption, fontsize=7, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axis: Any, cases: list[dict[str, Any]], metric: str, title: str, bar: float) -> None:
    names = [f"{case['operation']}: {case['variant']}" for case in cases]
    colours = [OTHERS if case["bound_by_arithmetic"] and metric == "share_of_copy" else OURS for case in cases]
    axis.barh(names, [case[metric] for case in cases], color=colours)
    axis.axvline(bar, color=INK, linewidth=0.8, linestyle=":")
    for position, case in enumerate(cases):
        axis.annotate(
            f"{case[metric]:.2f}",
            (case[metric], position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axis.set_title(title, fontsize=9, loc="left", color=INK)
    axis.margins(x=0.12)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
