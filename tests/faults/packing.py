"""SIGKILL at random moments of packing, and packing on a Ray cluster of two nodes: the bytes are always the same."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.faults.kills import killed, strays
from tests.faults.tars import read_all
from tests.pack.images_folder import caption, digest, pack, png, write_images

ROOT = Path(__file__).parents[2]
IMAGES = 600
OPTIONS: dict[str, Any] = {"max_samples": 50, "shuffle": 3, "split": (("train", 0.8), ("val", 0.2))}


def make_sources(folder: Path) -> dict[str, Path]:
    """Makes the same images as a folder, as Parquet, and as tars."""
    images = write_images(folder / "images", IMAGES)
    (folder / "parquet").mkdir()
    columns = {"image": [png(n) for n in range(IMAGES)], "text": [caption(n) for n in range(IMAGES)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "parquet" / "rows.parquet", row_group_size=70)
    pack(images, folder / "tars", max_samples=110)
    return {"folder": images, "parquet": folder / "parquet", "tars": folder / "tars"}


def pack_kills(folder: Path) -> Case:
    """Packs each source once; the case kills a run up to three times, and lets the next one end."""
    logging.disable(logging.ERROR)
    sources = make_sources(folder)
    expected: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name, source in sources.items():
        began = time.monotonic()
        pack(source, folder / f"{name}-packed", **OPTIONS)
        seconds[name] = time.monotonic() - began
        expected[name] = digest(folder / f"{name}-packed")

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        name = list(sources)[number % len(sources)]
        workers = 2 if number % 4 == 3 else 1
        out = scratch / "out"
        limit = seconds[name] * 1.1 + (3.0 if workers == 2 else 0.0)

        def run() -> None:
            pack(sources[name], out, num_workers=workers, **OPTIONS)

        kills = sum(killed(run, random.uniform(0, limit)) for _ in range(3))
        while not kills:  # all ended before: the run that was measured was a slow one
            shutil.rmtree(out)
            limit /= 2
            kills += killed(run, random.uniform(0, limit))
        result = pack(sources[name], out, **OPTIONS)
        if digest(out) != expected[name]:
            raise Lost(f"{name}: after {kills} kills of {workers} workers the bytes differ")
        found = read_all(out)
        if len(found) != IMAGES or result.num_samples != IMAGES or result.skipped:
            raise Lost(f"{name}: {len(found)} of {IMAGES} samples can be read, {len(result.skipped)} were left out")
        if strays(out):
            raise Lost(f"{name}: left behind {strays(out)}")
        return Outcome(tried=kills, survived=kills)

    return case


def pack_on_ray(folder: Path) -> Case:
    """Packs each source in processes; the case does it on a cluster, in a process of its own."""
    logging.disable(logging.ERROR)
    sources = make_sources(folder)

    def case(number: int, scratch: Path) -> Outcome:
        name = list(sources)[number % len(sources)]
        pack(sources[name], scratch / "alone", **OPTIONS)
        command = [sys.executable, "-m", "tests.pack.on_ray", str(sources[name]), str(scratch / "out")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        if done.returncode:
            raise Lost(done.stderr[-2000:])
        if digest(scratch / "alone") != digest(scratch / "out"):
            raise Lost(f"{name}: the bytes differ")
        return Outcome()

    return case


PACK_KILLS = Campaign("killed while packing", 20, pack_kills, timeout_seconds=120, cases_per_child=10)
PACK_ON_RAY = Campaign(
    "packing on Ray", 3, pack_on_ray, timeout_seconds=300, cases_per_child=3, warm_cases=3, is_sampled=False
)
