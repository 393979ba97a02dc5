"""Compares the front ends of speech models with their processors on many recordings; prints a table.

    python -m tests.decode.audio_front_ends [--only NAME ...] [--configurations 40] [--batches 4] [--seed 0] [--jobs 2]

The first configuration of each is the published one, the others are drawn. Batches have 1 to 4 recordings; each
recording is also compared alone, bit for bit. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.decode.audio_front_ends.speech_cases import CASES
from tests.decode.audio_front_ends.speech_comparison import run


def main() -> int:
    """Runs the sweep that the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of cases")
    parser.add_argument("--configurations", type=int, default=40)
    parser.add_argument("--batches", type=int, default=4, help="batches for each configuration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    names = [case.name for case in CASES if not options.only or any(word in case.name for word in options.only)]
    os.environ["OMP_NUM_THREADS"] = "1"
    failed = False
    print(
        f"{'case':20}{'configs':>8}{'recordings':>11}{'texts':>7}{'batched values':>15}{'unequal':>9}{'by':>9}  differ"
    )
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(run, name, options.seed, options.configurations, options.batches) for name in names]
        for name, task in zip(names, tasks, strict=True):
            tally, seconds = task.result()
            failed = failed or bool(tally.differences)
            print(
                f"{name:20}{tally.configurations:>8}{tally.recordings:>11}{tally.texts:>7}{tally.values:>15,}"
                f"{tally.unequal:>9,}{tally.largest:>9.1e}  {len(tally.differences)} ({seconds:.0f} s)",
                flush=True,
            )
            for line in tally.differences[:5]:
                print("   ", line)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
