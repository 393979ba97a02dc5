"""Runs one workload: its candidates, one after the other, each in its own process, and returns plain values."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.candidates.preparing import prepare, run_command
from benchmarks.candidates.task import Task
from benchmarks.data.linked_shards import CRUDE, link_shards
from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.environments import AbsentError, CandidateError, python_of, run_candidate
from benchmarks.remote.s3_server import S3Server
from benchmarks.results import judge_bar, judge_limit, summarise
from benchmarks.workload import Candidate, Workload

_FIRST_BATCHES = ("restoring", "first_batch")
"""Programs that take the first batches of energon_style, which compares them with the files."""

CANDIDATE_SECONDS = 120
"""Time limit in seconds of one run of a candidate if time is short."""


def prepared(recipe: Recipe, cache: Path) -> Path:
    """Returns the folder of a recipe's dataset, prepared if necessary, and read once into the page cache."""
    folder = make_dataset(recipe, cache)
    if not (folder / ".nv-meta" / "dataset.yaml").exists():
        prepare("energon-dali", folder)
        if recipe.own_shards:
            link_shards(folder, recipe.shards)
        elif recipe.style == "text":
            (folder / ".nv-meta" / "dataset.yaml").write_text(CRUDE)
    if recipe.media_index and not (folder / ".nv-meta" / "media_index.bin").exists():
        run_command("energon-dali", "prepare-media", folder, "--media-metadata-by-extension")
    for shard in {path.stat().st_ino: path for path in folder.glob("*.tar")}.values():  # each once, if they are links
        shard.read_bytes()
    return folder


class WorkloadRun:
    """One workload being run: checks first, then repetitions in which the candidates take turns.

    Args:
        workload: What to run.
        options: Of the command line.
        versions: Is filled with the packages of each environment.
    """

    def __init__(self, workload: Workload, options: argparse.Namespace, versions: dict[str, dict[str, str]]) -> None:
        self.workload = workload
        self.failed = False
        self._versions = versions
        self._end = float("inf")
        self._repetitions: int = options.repetitions or workload.repetitions
        wanted: tuple[str, ...] = tuple(options.candidates)
        self._candidates = [
            one for one in workload.candidates if not wanted or any(text in one.name for text in wanted)
        ]
        recipes = {one.recipe or workload.recipe for one in self._candidates}
        self._folders = {recipe: prepared(recipe, options.cache) for recipe in recipes}
        self._cache: Path = options.cache
        self._variables: dict[str, str] = {}
        self._checked: dict[str, int] = {}
        self._left_out: dict[str, str] = {}
        self._runs: dict[str, list[dict[str, float]]] = {one.name: [] for one in self._candidates}

    def run(self, end: float) -> dict[str, Any]:
        """Returns the result as plain values.

        Args:
            end: Time by `time.monotonic` after which nothing begins any more.
        """
        self._end = end
        if self.workload.storage is None:
            return self._run()
        with S3Server(self._cache.parent, **self.workload.storage) as server:
            self._variables = server.environment()
            return self._run()

    def _convert(self, candidate: Candidate) -> None:
        """Writes the files in the format of a candidate, once for its sizes.

        A folder without the mark is incomplete.
        """
        folder = self._folders[candidate.recipe or self.workload.recipe]
        mark = folder.parent / f"{folder.name}-{candidate.format}" / ".complete"
        sizes = json.dumps({name: value for name, value in candidate.options.items() if name.endswith("_bytes")})
        if not candidate.format or (mark.exists() and mark.read_text() == sizes) or candidate.name in self._left_out:
            return
        if self._attempt(candidate, "convert") is not None:
            mark.write_text(sizes)

    def _run(self) -> dict[str, Any]:
        for candidate in self._candidates:
            self._convert(candidate)
        # If time is short, a candidate is checked in the process that was timed.
        at_once = self.workload.seconds > 0
        checks = self.workload.output != "none" and not at_once
        steps = len(self._candidates) * (self._repetitions + checks)
        with tqdm(total=steps, desc=self.workload.name, leave=False) as progress:
            if checks:
                for candidate in self._candidates:
                    progress.set_postfix_str(f"check {candidate.name}")
                    self._note_checked(candidate, self._attempt(candidate, "check"))
                    progress.update()
            for repetition in range(self._repetitions):
                for candidate in self._candidates:
                    progress.set_postfix_str(candidate.name)
                    numbers = self._attempt(candidate, "both" if at_once and repetition == 0 else "time")
                    if numbers is not None:
                        if "samples_checked" in numbers:
                            self._note_checked(candidate, numbers)
                        self._runs[candidate.name].append(numbers)
                    progress.update()
        return self.result()

    def _note_checked(self, candidate: Candidate, numbers: dict[str, float] | None) -> None:
        self._checked[candidate.name] = int((numbers or {}).pop("samples_checked", 0))

    def _attempt(self, candidate: Candidate, action: str) -> dict[str, float] | None:
        if candidate.name in self._left_out:
            return None
        if time.monotonic() > self._end:
            if not self._runs[candidate.name]:
                self._left_out[candidate.name] = "no time was left; give more --minutes, or --only some workloads"
            return None
        python = python_of(candidate.environment)
        if python is None:
            what = {"energon": "megatron-energon is", "peers": "the other loaders are"}[candidate.environment]
            self._left_out[candidate.name] = f"{what} not installed; `make bench-all` does it"
            return None
        try:
            limit = CANDIDATE_SECONDS if self.workload.seconds and action != "convert" else 300
            root = Path(candidate.checkout) if candidate.checkout else None
            outcome = run_candidate(
                self._task(candidate, action), python, timeout_seconds=limit, root=root, variables=self._variables
            )
        except AbsentError as error:
            self._left_out[candidate.name] = str(error)
            return None
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
        # A check only compares images; a trainer would only slow it down.
        options = {name: value for name, value in candidate.options.items() if action != "check" or name != "trainer"}
        if action == "check" and candidate.program == "restoring":
            options = {**options, "shuffle_window": None}
        folder = self._folders[candidate.recipe or work.recipe]
        return Task(
            program="energon_style" if action == "check" and candidate.program in _FIRST_BATCHES else candidate.program,
            action=action if work.output != "none" or action == "convert" else "time",
            dataset=str(folder),
            url="" if work.storage is None else f"s3://{self._cache.name}/{folder.name}",
            output=work.output,
            batch_size=candidate.batch_size or work.batch_size,
            warmup_samples=work.warmup_samples,
            samples=work.samples,
            device=work.device,
            seconds=work.seconds,
            trains=work.trains,
            options=options,
        )

    def result(self) -> dict[str, Any]:
        """Returns what was measured so far as plain values."""
        work = self.workload
        return {
            "name": work.name,
            "title": work.title,
            "metric": work.metric,
            "unit": work.unit,
            "better": work.better,
            "recipe": dataclasses.asdict(work.recipe),
            "bytes_per_sample": self._bytes_per_sample(work.recipe),
            "batch_size": work.batch_size,
            "samples": work.samples,
            "warmup_samples": work.warmup_samples,
            "repetitions": self._repetitions,
            "output": work.output,
            "device": work.device,
            "seconds": work.seconds,
            "trains": work.trains,
            "storage": None if work.storage is None else dict(work.storage),
            "x_label": work.x_label,
            "candidates": [
                {
                    "name": one.name,
                    "program": one.program,
                    "options": dict(one.options),
                    "environment": one.environment,
                    "format": one.format,
                    "checkout": one.checkout,
                    "series": one.series,
                    "at": one.at,
                    "samples_checked": self._checked.get(one.name, 0),
                    "left_out": self._left_out.get(one.name, ""),
                    "runs": self._runs[one.name],
                    "summary": summarise(self._runs[one.name]),
                }
                for one in self._candidates
            ],
            "bars": [judge_bar(bar, work, self._runs) for bar in work.bars],
            "limits": [judge_limit(limit, self._runs) for limit in work.limits],
        }

    def _bytes_per_sample(self, recipe: Recipe) -> float | None:
        folder = self._folders.get(recipe)
        if folder is None:
            return None
        return sum(shard.stat().st_size for shard in folder.glob("*.tar")) / recipe.samples
