"""`python -m benchmarks.profile DATASET`: the cost of a sample in each stage, and in total compared with bare DALI.

The stages are those of `loader.stats()`; the CPU time is the operating system's, of all threads and workers.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.candidates import dali_native, energon_style
from benchmarks.candidates.task import Task

BATCH = 64
WARMUP_BATCHES = 8
STAGES = ("read", "load", "encode_sample", "batch", "encode_batch")


def main() -> None:
    """Prints microseconds per sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="prepared folder, such as .cache/benchmarks/jpegs")
    parser.add_argument("--output", choices=("uint8", "float224"), default="uint8")
    parser.add_argument("--batches", type=int, default=40)
    arguments = parser.parse_args()
    for workers in (0, 1):
        _profile_ours(arguments.dataset, arguments.output, workers, arguments.batches)
    task = _task("dali_native", arguments.dataset, arguments.output)
    batches = dali_native.open_stream(task, False)
    wall, cpu = _measure(lambda: next(batches), arguments.batches)
    print(f"bare DALI: {wall:.0f} us wall, {cpu:.0f} us CPU per sample")


def _task(program: str, dataset: str, output: str, **options: Any) -> Task:
    return Task(
        program=program,
        action="time",
        dataset=dataset,
        output=output,
        batch_size=BATCH,
        warmup_samples=0,
        samples=0,
        options=options,
    )


def _profile_ours(dataset: str, output: str, workers: int, batches: int) -> None:
    task = _task("energon_style", dataset, output, library="energon_dali", decoder="dali", workers=workers)
    with energon_style.open_loader(task) as loader:
        live: Iterator[Any] = iter(loader)
        list(islice(live, WARMUP_BATCHES))
        before = loader.stats()
        wall, cpu = _measure(lambda: next(live), batches)
        after = loader.stats()
    samples = after.counts["samples.read"] - before.counts["samples.read"]
    spent = {
        stage: 1e6 * (after.stage_seconds.get(stage, 0.0) - before.stage_seconds.get(stage, 0.0)) / samples
        for stage in STAGES
    }
    stages = ", ".join(f"{stage} {value:.1f}" for stage, value in spent.items())
    # The parent cannot see the CPU time of live workers, but that of their stages.
    print(f"energon_dali, {workers} workers: {wall:.0f} us wall, {cpu:.0f} us CPU per sample in the rank; {stages}")


def _measure(take: Callable[[], Any], batches: int) -> tuple[float, float]:
    """Returns (wall, CPU) microseconds per sample."""
    for _ in range(WARMUP_BATCHES):
        take()
    usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(batches):
        take()
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime
    return 1e6 * wall / (batches * BATCH), 1e6 * cpu / (batches * BATCH)


if __name__ == "__main__":
    main()
