"""Compares every front end with its processor on many images; prints a table.

    python -m tests.decode.front_ends [--only NAME ...] [--count 1000] [--seed 0] [--jobs 2]

A third of the images goes through the published configuration, the rest through drawn ones, in batches of 1 to 4. Of
videos there are a quarter as many, a fifth of them through published configurations, and torchvision is needed. Exits
with 1 if anything differs or was not compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor

from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.comparison import Comparison
from tests.decode.front_ends.sweep import run
from tests.decode.front_ends.video_sweep import FAMILIES, run_videos


def main() -> int:
    """Runs the sweep that the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of cases")
    parser.add_argument("--count", type=int, default=1000, help="images per case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    chosen = [
        number
        for number, case in enumerate(CASES)
        if not options.only or any(word.lower() in case.name.lower() for word in options.only)
    ]
    videos = [
        name for name in FAMILIES if not options.only or any(word.lower() in name.lower() for word in options.only)
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    failed = False
    print(
        f"{'case':24}{'images':>8}{'refused':>9}{'tokens':>8}{'texts':>8}{'differ':>8}{'CPU s':>7}  routes", flush=True
    )
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks: list[Future[tuple[str, Comparison | None, float]]] = []
        tasks += [pool.submit(run, number, options.count, options.seed) for number in chosen]
        tasks += [pool.submit(run_videos, name, options.count // 4, options.seed) for name in videos]
        for task in tasks:
            name, result, seconds = task.result()
            if result is None:
                print(f"{name:24}not compared: torchvision is missing; `make test-front-ends` installs it", flush=True)
                failed = True
                continue
            routes = ", ".join(f"{route} {count:,}" for route, count in sorted(result.routes.items()))
            print(
                f"{name:24}{result.compared:>8,}{result.refused:>9,}{result.tokens:>8,}{result.texts:>8,}{len(result.differences):>8}"
                f"{seconds:>7.0f}  {routes}",
                flush=True,
            )
            for line in result.differences[:5]:
                print("   ", line)
            failed = failed or bool(result.differences)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
