"""`python -m benchmarks.plot_summary cpu.json video.json OUT.png`: draws the first figure of the README."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plot import INK, OTHERS, OURS

_SECOND = "#8fc2ae"


@dataclass(frozen=True, slots=True)
class Panel:
    """One group of bars: a workload, and which of its candidates are shown."""

    workload: str
    """Name of the workload in the reports."""
    title: str
    """What is measured."""
    bars: dict[str, str]
    """Label of a bar: name of the candidate in the report."""


PANELS = (
    Panel(
        "uint8",
        "JPEGs to uint8 tensors, images/s",
        {
            "energon_dali, DALI": "energon_dali DALI, 1 worker, CHW",
            "energon_dali, PIL": "energon_dali PIL, 2 workers",
            "Megatron Energon": "megatron-energon, 2 workers",
        },
    ),
    Panel(
        "fused224",
        "Random 224 x 224 crops, normalized, images/s",
        {
            "energon_dali, DALI": "energon_dali DALI, 1 worker",
            "energon_dali, PIL": "energon_dali PIL, 2 workers",
            "Energon + torchvision": "megatron-energon + torchvision, 2 workers",
        },
    ),
    Panel(
        "clips",
        "Two clips per H.264 video, videos/s",
        {
            "energon_dali, PyAV": "energon_dali AVDecoder",
            "torchcodec": "torchcodec",
            "Megatron Energon": "megatron-energon AVDecoder",
        },
    ),
    Panel(
        "restore",
        "Restored with a window of 100,000: seconds to the\nfirst batch (lower is better)",
        {
            "energon_dali, DALI": "energon_dali DALI, 2 workers",
            "energon_dali, PIL": "energon_dali PIL, 2 workers",
            "Energon, window 500": "megatron-energon, 2 workers, window 500",
        },
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Writes the figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_summary", description=__doc__)
    parser.add_argument("cpu", type=Path, help="results of `benchmarks.run cpu`")
    parser.add_argument("video", type=Path, help="results of `benchmarks.run video`")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot([json.loads(path.read_text()) for path in (options.cpu, options.video)], options.png)
    return 0


def plot(reports: list[dict[str, Any]], path: Path) -> None:
    """Draws the panels of `PANELS` in two columns.

    Args:
        reports: What `benchmarks.run` wrote; each workload is taken from the first report that has it.
        path: PNG to write.

    Raises:
        ValueError: A workload or a candidate has no figures.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 3.4), layout="constrained")
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        rows = {label: _summary(reports, panel.workload, name) for label, name in reversed(panel.bars.items())}
        values = [row["median"] for row in rows.values()]
        below = [row["median"] - row["low"] for row in rows.values()]
        above = [row["high"] - row["median"] for row in rows.values()]
        colours = [
            (OURS if label == next(iter(panel.bars)) else _SECOND) if label.startswith("energon_dali") else OTHERS
            for label in rows
        ]
        lines = {"elinewidth": 1, "capsize": 2.5, "ecolor": INK}
        axis.barh(list(rows), values, xerr=[below, above], color=colours, error_kw=lines)
        for position, row in enumerate(rows.values()):
            value = row["median"]
            axis.annotate(
                f"{value:,.0f}" if value >= 100 else f"{value:.1f}",
                (row["high"], position),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=INK,
            )
        axis.set_title(panel.title, fontsize=9.5, loc="left", color=INK)
        axis.margins(x=0.14)
        axis.tick_params(labelsize=9, length=0)
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.supxlabel(_caption(reports), fontsize=7.5, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _caption(reports: list[dict[str, Any]]) -> str:
    """Returns the line under the chart: machine, date, what bars and lines are."""
    machine = reports[0]["machine"]
    days = sorted({report["started"][:10] for report in reports})
    shown = [
        workload
        for report in reports
        for workload in report["workloads"]
        if workload["name"] in {panel.workload for panel in PANELS}
    ]
    fewest, most = (choose(workload["repetitions"] for workload in shown) for choose in (min, max))
    runs = f"{fewest} runs" if fewest == most else f"{fewest} to {most} runs"
    date = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return (
        f"{machine['processor']}, {machine['cores']} cores, no GPU; measured on {date}. "
        f"Bars: median of {runs}; lines: lowest to highest."
    )


def _summary(reports: list[dict[str, Any]], workload: str, candidate: str) -> dict[str, float]:
    for report in reports:
        for panel in report["workloads"]:
            if panel["name"] == workload:
                for one in panel["candidates"]:
                    if one["name"] == candidate and one["summary"]:
                        summary: dict[str, float] = one["summary"][panel["metric"]]
                        return summary
    raise ValueError(f"No figures for {candidate!r} in the workload {workload!r}: run it again, with all candidates.")


if __name__ == "__main__":
    sys.exit(main())
