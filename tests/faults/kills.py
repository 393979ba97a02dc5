"""SIGKILL at random moments of preparing and training: nothing is lost, and nothing obstructs the next run."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random

from energon_dali.shards import prepare_dataset
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.faults.leftovers import PATIENCE_SECONDS, awaited
from tests.faults.tars import read_all
from tests.loader.dataset_folder import captioning_dataset, captioning_sample, write_shards
from tests.loader.killed_run import open_loader, run

ROUNDS = 5
"""How often a training run is killed before its batches are compared."""
BATCHES = 6_000
"""More batches than a run delivers before it is killed."""


def killed(call: Callable[[], object], seconds: float) -> bool:
    """Runs `call` in a forked child and kills it after a time; returns whether it was still running.

    Raises:
        Lost: It failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            if status:
                raise Lost(f"the run ended by itself with {os.waitstatus_to_exitcode(status)}")
            return False
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def shared_memory() -> set[str]:
    """Returns the names of this package's shared memory; folders there belong to other runs of these campaigns."""
    with os.scandir("/dev/shm") as entries:
        return {entry.name for entry in entries if "energon" in entry.name and not entry.is_dir()}


def strays(folder: Path) -> list[str]:
    """Returns the files below a folder that only a run in progress has."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.endswith(".tmp") or path.name.startswith(".energon-dali-")
    ]


def prepare_kills(folder: Path) -> Case:
    """Creates a dataset; the case kills its first prepare, a second one, or one with more shards."""
    logging.disable(logging.ERROR)
    samples = {f"k{number:04d}": captioning_sample(number) for number in range(60)}
    write_shards(folder / "fresh", samples, 6)
    shutil.copytree(folder / "fresh", folder / "prepared")
    began = time.monotonic()
    prepare_dataset(folder / "prepared")
    duration = time.monotonic() - began
    whole = read_all(folder / "prepared")
    identity = (folder / "prepared" / ".nv-meta" / "index.uuid").read_text()

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        kind = ("fresh", "same", "more")[number % 3]
        data, limit = scratch / "data", duration * 1.2
        if kind == "more":
            write_shards(scratch / "extra", {f"z{n}": captioning_sample(n) for n in range(7)}, 1)

        def kill() -> bool:
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(folder / ("fresh" if kind == "fresh" else "prepared"), data)
            if kind == "more":
                shutil.copy(scratch / "extra" / "shard_000.tar", data / "zzz.tar")
            return killed(lambda: prepare_dataset(data), random.uniform(0, limit))

        while not kill():  # it ended before: the run that was measured was a slow one
            limit /= 2
        if kind != "fresh":
            found = read_all(data)
            if any(found.get(key) != parts for key, parts in whole.items()):
                raise Lost(f"{kind}: after the kill {len(found)} samples can be read: {str(found)[:300]}")
            if kind == "same" and (data / ".nv-meta" / "index.uuid").read_text() != identity:
                raise Lost("same: the identity changed")
        prepare_dataset(data)
        found = read_all(data)
        if any(found.get(key) != parts for key, parts in whole.items()):
            raise Lost(f"{kind}: after the next prepare {len(found)} samples can be read")
        if kind == "same" and (data / ".nv-meta" / "index.uuid").read_text() != identity:
            raise Lost("same: the next prepare drew another identity")
        if strays(data):
            raise Lost(f"{kind}: the killed prepare left {strays(data)}, and the next one did not clean up")
        return Outcome()

    return case


def training_kills(folder: Path) -> Case:
    """Creates two datasets; the case kills a run over their blend several times and compares what it delivered."""
    logging.disable(logging.ERROR)
    for name, count in (("one", 40), ("two", 25)):
        captioning_dataset(folder / name, count)

    def first_batches(count: int) -> list[object]:
        with open_loader(folder, 0) as loader:
            return [json.loads(json.dumps(batch)) for batch in islice(loader, count)]

    expected = first_batches(1)

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        workers = 2 if number % 5 == 4 else 0
        file = scratch / "run.json"
        shared = shared_memory()
        kills = 0
        for _ in range(ROUNDS):
            seconds = random.uniform(0.02, 1.5 if workers else 0.3)
            kills += killed(lambda: run(folder, file, BATCHES - 1, workers), seconds)
        delivered = json.loads(file.read_text())["batches"] if file.exists() else []
        if len(delivered) > len(expected):  # a sample of the cases needs few of them
            expected[:] = first_batches(min(BATCHES, 2 * len(delivered)))
        if delivered != expected[: len(delivered)]:
            pairs = enumerate(zip(delivered, expected, strict=False))
            at = next((n for n, pair in pairs if pair[0] != pair[1]), len(expected))
            raise Lost(f"batch {at} of {len(delivered)} differs from the {len(expected)} expected: {delivered[at]}")
        left = awaited(lambda: shared_memory() - shared, PATIENCE_SECONDS)
        if left:
            raise Lost(f"left in shared memory: {left}")
        return Outcome(tried=kills, survived=kills)

    return case


PREPARE_KILLS = Campaign("killed while preparing", 150, prepare_kills, cases_per_child=50)
TRAINING_KILLS = Campaign("killed while training", 26, training_kills, timeout_seconds=120, cases_per_child=13)
