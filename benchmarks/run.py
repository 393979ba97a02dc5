"""`python -m benchmarks.run cpu --json OUT`: runs the registered workloads and writes what they gave."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import cpu, video
from benchmarks.candidates.preparing import prepare
from benchmarks.candidates.task import Task
from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.environments import ROOT, CandidateError, python_of, run_candidate
from benchmarks.machine import commit, describe_machine
from benchmarks.results import as_text, judge_bar, judge_limit, summarise
from benchmarks.workload import Candidate, Workload

SUITES: dict[str, tuple[Workload, ...]] = {"cpu": cpu.WORKLOADS, "video": video.WORKLOADS}
CACHE = ROOT / ".cache" / "benchmarks"


def main(arguments: list[str] | None = None) -> int:
    """Runs a suite; returns 1 if a candidate failed or delivered wrong pictures, 0 otherwise."""
    options = parse(arguments)
    workloads = [quick(workload) if options.quick else workload for workload in SUITES[options.suite]]
    chosen = [workload for workload in workloads if not options.only or workload.name in options.only]
    report: dict[str, Any] = {
        "suite": options.suite,
        "command": shlex.join(["python", "-m", "benchmarks.run", *(sys.argv[1:] if arguments is None else arguments)]),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "machine": describe_machine(),
        "versions": {},
        "workloads": [],
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a candidate is ended with the runner
    failed = False
    for workload in chosen:
        runner = WorkloadRun(workload, options, report["versions"])
        result = runner.run()
        failed |= runner.failed
        report["workloads"].append(result)
        print(as_text(result), flush=True)
        if options.json is not None:  # after each workload, so that an interrupted run leaves what it has
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="*", default=(), metavar="WORKLOAD", help="names of workloads")
    parser.add_argument("--candidates", nargs="*", default=(), metavar="TEXT", help="texts, one of them in the name")
    parser.add_argument("--repetitions", type=int, help="runs per candidate, instead of the workload's own")
    parser.add_argument("--quick", action="store_true", help="a smoke test, whose numbers mean nothing")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for the datasets (default: %(default)s)")
    return parser.parse_args(arguments)


def quick(workload: Workload) -> Workload:
    """Returns a small version of a workload, to see whether it runs."""
    whole = workload.recipe
    name = f"{whole.name}-quick"
    recipe = dataclasses.replace(whole, name=name, samples=64, shards=min(whole.shards, 32))
    if whole.style == "video":
        recipe = dataclasses.replace(whole, name=name, samples=min(whole.samples, 4), seconds=4)
        return dataclasses.replace(workload, recipe=recipe, samples=4, warmup_samples=2, repetitions=1)
    return dataclasses.replace(workload, recipe=recipe, samples=96, warmup_samples=32, batch_size=16, repetitions=1)


def prepared(recipe: Recipe, cache: Path) -> Path:
    """Returns the folder of a recipe's dataset, made and prepared if it was not, and read once into the page cache."""
    folder = make_dataset(recipe, cache)
    if not (folder / ".nv-meta" / "dataset.yaml").exists():
        prepare("energon-dali", folder)
    for shard in folder.glob("*.tar"):
        shard.read_bytes()
    return folder


class WorkloadRun:
    """One workload being run: checks first, then repetitions in which the candidates take turns."""

    def __init__(self, workload: Workload, options: argparse.Namespace, versions: dict[str, dict[str, str]]) -> None:
        self.workload = workload
        self.failed = False
        self._versions = versions
        self._dataset = prepared(workload.recipe, options.cache)
        self._repetitions: int = options.repetitions or workload.repetitions
        wanted: tuple[str, ...] = tuple(options.candidates)
        self._candidates = [
            one for one in workload.candidates if not wanted or any(text in one.name for text in wanted)
        ]
        self._checked: dict[str, int] = {}
        self._left_out: dict[str, str] = {}
        self._runs: dict[str, list[dict[str, float]]] = {one.name: [] for one in self._candidates}

    def run(self) -> dict[str, Any]:
        """Returns the result as plain values."""
        steps = len(self._candidates) * (self._repetitions + (self.workload.output != "none"))
        with tqdm(total=steps, desc=self.workload.name, leave=False) as progress:
            if self.workload.output != "none":
                for candidate in self._candidates:
                    progress.set_postfix_str(f"check {candidate.name}")
                    checked = self._attempt(candidate, "check") or {}
                    self._checked[candidate.name] = int(checked.get("samples_checked", 0))
                    progress.update()
            for _ in range(self._repetitions):
                for candidate in self._candidates:
                    progress.set_postfix_str(candidate.name)
                    numbers = self._attempt(candidate, "time")
                    if numbers is not None:
                        self._runs[candidate.name].append(numbers)
                    progress.update()
        return self._result()

    def _attempt(self, candidate: Candidate, action: str) -> dict[str, float] | None:
        if candidate.name in self._left_out:
            return None
        python = python_of(candidate.environment)
        if python is None:
            self._left_out[candidate.name] = "megatron-energon is not installed; `make bench` does it"
            return None
        try:
            outcome = run_candidate(self._task(candidate, action), python)
        except CandidateError as error:
            self.failed = True
            self._left_out[candidate.name] = str(error)
            self._runs[candidate.name].clear()
            print(f"\n{candidate.name}: {error}", file=sys.stderr, flush=True)
            return None
        self._versions[candidate.environment] = outcome.versions
        return outcome.numbers

    def _task(self, candidate: Candidate, action: str) -> Task:
        work = self.workload
        # A check compares the pictures alone; a trainer beside it would only make it slow.
        options = {name: value for name, value in candidate.options.items() if action != "check" or name != "trainer"}
        if action == "check" and candidate.program == "restoring":
            options = {**options, "shuffle_window": None}
        return Task(
            program="energon_style" if action == "check" and candidate.program == "restoring" else candidate.program,
            action=action, dataset=str(self._dataset), output=work.output, batch_size=work.batch_size,
            warmup_samples=work.warmup_samples, samples=work.samples, options=options,
        )  # fmt: skip

    def _result(self) -> dict[str, Any]:
        work = self.workload
        return {
            "name": work.name, "title": work.title, "metric": work.metric, "unit": work.unit, "better": work.better,
            "recipe": dataclasses.asdict(work.recipe), "batch_size": work.batch_size, "samples": work.samples,
            "warmup_samples": work.warmup_samples, "repetitions": self._repetitions,
            "candidates": [
                {
                    "name": one.name, "program": one.program, "options": dict(one.options),
                    "environment": one.environment,
                    "samples_checked": self._checked.get(one.name, 0), "left_out": self._left_out.get(one.name, ""),
                    "runs": self._runs[one.name], "summary": summarise(self._runs[one.name]),
                }
                for one in self._candidates
            ],
            "bars": [judge_bar(bar, work, self._runs) for bar in work.bars],
            "limits": [judge_limit(limit, self._runs) for limit in work.limits],
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
