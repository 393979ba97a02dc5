"""Compares every front end with its processor on many images; prints a table.

    python -m tests.decode.front_ends [--only NAME ...] [--count 1000] [--seed 0] [--jobs 2]

A third of the images goes through the published configuration, the rest through drawn ones, in batches of 1 to 4. Exits
with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time

from energon_dali import FrontEnd
from tests.decode.front_ends.cases import CASES, Case
from tests.decode.front_ends.comparison import Comparison, compare
from tests.decode.front_ends.images import EXTREME_SIZES, draw_images

_PER_CONFIGURATION = 12
"""Images per drawn configuration."""


def sweep(case: Case, count: int, seed: int) -> Comparison:
    """Returns the comparison of one case over `count` images."""
    draw = random.Random(seed)
    result = Comparison()
    first = max(len(EXTREME_SIZES), count // 3)
    result += _compare(case, case.published(), first, seed, 1)
    while result.compared < count:
        processor = case.make(draw)
        images = min(_PER_CONFIGURATION, count - result.compared)
        part = _compare(case, processor, images, draw.randrange(1 << 30), draw.randrange(1, 5))
        part.differences = [f"{line} with {processor.to_dict()}" for line in part.differences]
        result += part
    return result


def _compare(case: Case, processor: object, count: int, seed: int, batch_size: int) -> Comparison:
    return compare(
        processor,
        draw_images(count, seed, largest=case.largest, extremes=count >= 2 * _PER_CONFIGURATION),
        front_end=FrontEnd.from_processor(processor, **case.fields(processor)),
        call=case.call,
        tokens=case.tokens,
        batch_size=batch_size,
    )


def _run(task: tuple[int, int, int]) -> tuple[str, Comparison, float]:
    import torch

    torch.set_num_threads(1)
    number, count, seed = task
    start = time.process_time()
    return CASES[number].name, sweep(CASES[number], count, seed), time.process_time() - start


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
    os.environ["OMP_NUM_THREADS"] = "1"
    failed = False
    print(f"{'case':24}{'images':>8}{'refused':>9}{'tokens':>8}{'differ':>8}{'CPU s':>7}  routes", flush=True)
    tasks = [(number, options.count, options.seed) for number in chosen]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for name, result, seconds in pool.imap(_run, tasks):
            routes = ", ".join(f"{route} {count:,}" for route, count in sorted(result.routes.items()))
            print(
                f"{name:24}{result.compared:>8,}{result.refused:>9,}{result.tokens:>8,}{len(result.differences):>8}"
                f"{seconds:>7.0f}  {routes}",
                flush=True,
            )
            for line in result.differences[:5]:
                print("   ", line)
            failed = failed or bool(result.differences)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
