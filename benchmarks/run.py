"""`python -m benchmarks.run cpu --json OUT`: runs the registered workloads and writes their results.

The suites named gpu- and growth take --device and end in --minutes: a GPU may be lent for short.
"""

from __future__ import annotations

import argparse
import compileall
import dataclasses
import datetime
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from benchmarks import (
    cpu,
    first_batch,
    gpu_images,
    gpu_mixed,
    gpu_ranks,
    gpu_video,
    gpu_vision,
    growth,
    packing,
    peers,
    small,
    trainer,
    video,
    vision,
)
from benchmarks.data.recipe import Recipe
from benchmarks.environments import ROOT
from benchmarks.machine import commit, describe_machine
from benchmarks.remote import workloads as remote
from benchmarks.results import as_text
from benchmarks.scale import streams
from benchmarks.scale import workloads as scale
from benchmarks.workload import Bar, Candidate, Device, Workload
from benchmarks.workload_run import WorkloadRun

SUITES: dict[str, tuple[Workload, ...]] = {
    "cpu": cpu.WORKLOADS,
    "first-batch": first_batch.WORKLOADS,
    "packing": packing.WORKLOADS,
    "peers": peers.WORKLOADS,
    "remote": remote.WORKLOADS,
    "scale": scale.WORKLOADS,
    "streams": streams.WORKLOADS,
    "small": small.WORKLOADS,
    "trainer": trainer.WORKLOADS,
    "video": video.WORKLOADS,
    "vision": vision.WORKLOADS,
}
DEVICE_SUITES: dict[str, Callable[[Device], tuple[Workload, ...]]] = {
    "gpu-images": gpu_images.workloads,
    "gpu-mixed": gpu_mixed.workloads,
    "gpu-ranks": gpu_ranks.workloads,
    "gpu-video": gpu_video.workloads,
    "gpu-vision": gpu_vision.workloads,
    "growth": growth.workloads,
}
"""Suites for both devices, with a time limit."""
MINUTES = {"peers": 9.0, "remote": 9.5, "scale": 9.5, "streams": 9.5}
"""Default time limit of a suite in minutes; creating the files comes on top."""
QUICK = {"remote": ("text-20ms", "opening-20ms"), "scale": ("scale-1m", "scale-blend"), "streams": ("streams-samples",)}
"""Workloads of a quick run, where all of them would take too long."""
DEVICE_MINUTES = 7.0
"""That of the suites for both devices."""
CACHE = ROOT / ".cache" / "benchmarks"


def main(arguments: list[str] | None = None) -> int:
    """Runs a suite; returns 1 if a candidate failed or delivered wrong images, 0 otherwise."""
    options = parse(arguments)
    chosen = choose(options)
    report: dict[str, Any] = {
        "suite": options.suite,
        "device": options.device,
        "quick": options.quick,
        "command": shlex.join(["python", "-m", "benchmarks.run", *(sys.argv[1:] if arguments is None else arguments)]),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "machine": describe_machine(),
        "versions": {},
        "workloads": [],
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that candidates end with the runner
    compile_modules(ROOT)
    failed = False
    end = time.monotonic() + 60 * options.minutes
    for number, workload in enumerate(chosen):
        began = time.monotonic()
        runner = WorkloadRun(workload, options, report["versions"])  # creates the files, which is not timed
        if options.suite in MINUTES:  # machines that are lent for short get no more time
            end += time.monotonic() - began
        left = sum(len(one.candidates) for one in chosen[number:])
        share = max(0.0, end - time.monotonic()) * len(workload.candidates) / left
        try:
            runner.run(time.monotonic() + share)
        finally:  # an interrupted run keeps its results, also those of the workload that was interrupted
            result = runner.result()
            report["workloads"].append(result)
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(report, indent=1) + "\n")
        failed |= runner.failed
        print(as_text(result), flush=True)
    if options.quick:
        print("A quick run, with small files and batches: these figures mean nothing.")
    return int(failed)


def compile_modules(root: Path) -> None:
    """Compiles what candidates import, as an installation does. A new checkout would do it in every process where
    PYTHONDONTWRITEBYTECODE is set, which takes 0.3 s of each first batch.
    """
    for folder in ("energon_dali", "kernels", "benchmarks"):
        compileall.compile_dir(root / folder, quiet=2)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("suite", choices=sorted({*SUITES, *DEVICE_SUITES}))
    parser.add_argument("--device", choices=get_args(Device), default="cpu", help="where to decode (not: cpu, video)")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="*", default=(), metavar="WORKLOAD", help="names of workloads")
    parser.add_argument("--all", action="store_true", help="workloads too that else run where they are named alone")
    parser.add_argument("--candidates", nargs="*", default=(), metavar="TEXT", help="texts, one of them in the name")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="also run our candidates of another checkout")
    parser.add_argument("--repetitions", type=int, help="runs per candidate, instead of the workload's own")
    parser.add_argument("--minutes", type=float, help="begin nothing after this time, shared by the workloads")
    parser.add_argument("--quick", action="store_true", help="a smoke test, whose numbers mean nothing")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the datasets (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.suite in SUITES and options.device != "cpu":
        parser.error(f"the suite {options.suite} needs no GPU: leave --device out")
    if options.minutes is None:
        options.minutes = MINUTES.get(options.suite, DEVICE_MINUTES if options.suite in DEVICE_SUITES else float("inf"))
    return options


def choose(options: argparse.Namespace) -> list[Workload]:
    """Returns the workloads of a command line.

    Raises:
        SystemExit: A name is none of the suite's.
    """
    known = SUITES[options.suite] if options.suite in SUITES else DEVICE_SUITES[options.suite](options.device)
    names = [workload.name for workload in known]
    if options.quick and not options.only and not options.all:
        options.only = QUICK.get(options.suite, ())
    if not set(options.only) <= set(names):
        raise SystemExit(f"--only {' '.join(options.only)}: the suite {options.suite} has {', '.join(names)}.")
    chosen = [one for one in known if one.name in options.only or (not options.only and (options.all or not one.extra))]
    if options.against is not None:
        chosen = [against(workload, options.against.resolve()) for workload in chosen]
    return [quick(workload) for workload in chosen] if options.quick else chosen


def against(workload: Workload, checkout: Path) -> Workload:
    """Returns a workload in which each of our candidates also runs from another checkout.

    The ratio of the two is reported, and not held to a bound. Other libraries take part once.
    """
    candidates: list[Candidate] = []
    bars = list(workload.bars)
    for one in workload.candidates:
        candidates.append(one)
        if one.environment == "own" and one.options.get("library") == cpu.OURS:
            candidates.append(dataclasses.replace(one, name=f"{one.name} ({checkout.name})", checkout=str(checkout)))
            bars.append(Bar(of=one.name, to=candidates[-1].name))
    return dataclasses.replace(workload, candidates=tuple(candidates), bars=tuple(bars))


def quick(workload: Workload) -> Workload:
    """Returns a small version of a workload, to test that it runs."""
    recipe = quick_recipe(workload.recipe)
    candidates = tuple(
        dataclasses.replace(
            one, recipe=one.recipe and quick_recipe(one.recipe), batch_size=one.batch_size and min(one.batch_size, 16)
        )
        for one in workload.candidates
    )
    small = dataclasses.replace(
        workload, recipe=recipe, candidates=candidates, repetitions=1, seconds=min(workload.seconds, 0.2)
    )
    if recipe.style == "video":
        return dataclasses.replace(small, samples=4, warmup_samples=2, batch_size=min(workload.batch_size, 2))
    return dataclasses.replace(small, samples=96, warmup_samples=32, batch_size=min(workload.batch_size, 16))


def quick_recipe(whole: Recipe) -> Recipe:
    """Returns a recipe of few and small files."""
    small = dataclasses.replace(whole, name=f"{whole.name}-quick", shards=min(whole.shards, 32))
    small = dataclasses.replace(small, own_shards=min(whole.own_shards, 4))
    if whole.style == "index":
        return dataclasses.replace(small, samples=2000 * small.shards)
    if whole.style == "video":
        return dataclasses.replace(
            small,
            samples=min(whole.samples, 4),
            distinct=min(whole.distinct, 4 if whole.mixed_sizes else 1),
            seconds=4,
            rounds=min(whole.rounds, 2),
            shards=min(whole.shards, 4),
            width=192,
            height=128,
        )
    if whole.style.startswith("small-"):
        return dataclasses.replace(small, samples=2000, shards=min(whole.shards, 8))
    return dataclasses.replace(
        small, samples=64, distinct=min(whole.distinct, 8), width=min(whole.width, 640), height=min(whole.height, 480)
    )


if __name__ == "__main__":
    sys.exit(main())
