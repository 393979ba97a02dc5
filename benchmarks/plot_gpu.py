"""`python -m benchmarks.plot_gpu RESULTS_DIR OUT.png`: one chart of the GPU's figures, for the README.

It takes gpu-images.json and gpu-video.json, as `benchmarks/gpu.sh` leaves them. Of dry runs, quick ones and nothing
it draws nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.plot import plot

NAMES = ("gpu-images.json", "gpu-video.json")


def main(arguments: list[str] | None = None) -> int:
    """Writes the chart."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_gpu", description=__doc__)
    parser.add_argument("results", type=Path, help="folder with the results of a GPU host, as benchmarks/results")
    parser.add_argument("png", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    plot(merged(options.results), options.png)
    return 0


def merged(folder: Path) -> dict[str, Any]:
    """Returns the reports of a folder as one.

    Args:
        folder: Folder with both files; one of them may be missing.

    Raises:
        ValueError: There is none, one is of a dry or of a quick run, or they are of different GPUs.
    """
    reports = [json.loads((folder / name).read_text()) for name in NAMES if (folder / name).is_file()]
    if not reports:
        raise ValueError(f"{folder} holds no {' or '.join(NAMES)}. Run benchmarks/gpu.sh on a host with a GPU first.")
    hosts = {(report["device"], *report["machine"]["gpus"], report["machine"]["processor"]) for report in reports}
    if len(hosts) > 1 or not next(iter(hosts))[0] == "gpu":
        raise ValueError(f"The results are of {sorted(hosts)}: all must be of one host with a GPU, and of no dry run.")
    if any(report.get("quick") for report in reports):
        raise ValueError(f"{folder} holds the results of a quick run, which mean nothing. Run gpu.sh without --quick.")
    return {**reports[0], "workloads": [workload for report in reports for workload in report["workloads"]]}


if __name__ == "__main__":
    sys.exit(main())
