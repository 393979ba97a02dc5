"""Compares every front end with its processor on many images and configurations; prints a line for each family.

    python -m tests.decode.front_ends [--only NAME ...] [--count 300] [--seed 0] [--jobs 2]

Published configurations come first, then drawn ones, of which each gets images of its own, in batches of 1 to 4. Videos
are as many, and torchvision is needed for them. Exits with 1 if anything differs, was not compared, or had fewer
configurations than 30.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.comparison import Comparison
from tests.decode.front_ends.sweep import CONFIGURATIONS, run
from tests.decode.front_ends.video_sweep import FAMILIES, run_videos

_CASES_OF_A_PROCESS = 12
"""Cases that a process compares, about, before another one takes its place: importing torch and transformers takes
seconds."""


def main() -> int:
    """Runs the sweep that the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of cases")
    parser.add_argument("--count", type=int, default=300, help="images or videos per case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    failed, seconds, cases = False, 0.0, 0
    print(
        f"{'family':24}{'images':>8}{'refused':>9}{'configurations':>16}{'differences':>13}{'CPU s':>7}"
        f"{'tokens':>8}{'texts':>8}  routes",
        flush=True,
    )
    for name, result, spent in _results(options):
        seconds, cases = seconds + spent, cases + 1
        failed = _report(name, result, spent) or failed
    print(f"{cases} families, {seconds:,.0f} CPU s")
    return int(failed)


def _results(options: argparse.Namespace) -> Iterator[tuple[str, Comparison | None, float]]:
    """Yields name, comparison and CPU seconds of each case that is chosen.

    Those that need torchvision run in processes of their own: transformers chooses other classes where it is imported.
    """

    def chosen(name: str) -> bool:
        return not options.only or any(word.lower() in name.lower() for word in options.only)

    numbers = [number for number, case in enumerate(CASES) if chosen(case.name)]
    for torchvision in (False, True):
        tasks: list[tuple[Callable[..., Any], str | int]] = [
            (run, number) for number in numbers if CASES[number].torchvision == torchvision
        ]
        if torchvision:
            tasks += [(run_videos, name) for name in FAMILIES if chosen(name)]
        # A pool that replaces its processes itself (max_tasks_per_child) may wait indefinitely in Python 3.11 and 3.12.
        step = _CASES_OF_A_PROCESS * options.jobs
        for start in range(0, len(tasks), step):
            with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
                futures = [
                    pool.submit(function, which, options.count, options.seed)
                    for function, which in tasks[start : start + step]
                ]
                for future in futures:
                    yield future.result()


def _report(name: str, result: Comparison | None, seconds: float) -> bool:
    """Prints the line of a case; returns whether it failed."""
    if result is None:
        print(f"{name:24}not compared: torchvision is missing; `make test-front-ends` installs it", flush=True)
        return True
    routes = ", ".join(f"{route} {count:,}" for route, count in sorted(result.routes.items()))
    print(
        f"{name:24}{result.compared:>8,}{result.refused:>9,}{result.configurations:>16,}{len(result.differences):>13,}"
        f"{seconds:>7.0f}{result.tokens:>8,}{result.texts:>8,}  {routes}",
        flush=True,
    )
    for line in result.differences[:5]:
        print("   ", line)
    return bool(result.differences) or result.configurations < CONFIGURATIONS


if __name__ == "__main__":
    sys.exit(main())
