from __future__ import annotations

import json
import multiprocessing
import random
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.loader.dataset_folder import captioning_dataset
from tests.loader.killed_run import open_loader, run


@pytest.mark.usefixtures("warm_fork_server")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.sweep)])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    """SIGKILL many times in a row: while workers start, a state is restored or written, or batches arrive."""
    for name, count in (("one", 40), ("two", 25)):
        captioning_dataset(tmp_path / name, count)
    place = tmp_path / "run.json"
    processes = multiprocessing.get_context("forkserver")
    loaders = [f"energon_dali.loader.{name}" for name in ("savable_loader", "datasets")]
    processes.set_forkserver_preload([*loaders, "tests.loader.killed_run"])
    moments = random.Random(4)
    progressed = 0
    for _ in range(kills):
        before = place.stat().st_mtime_ns if place.exists() else 0
        process = processes.Process(target=run, args=(tmp_path, place, 100_000))
        process.start()
        began, wait = time.monotonic(), moments.uniform(0.0, 0.4)
        if moments.random() < 0.7:  # most runs make some progress, so that states of many positions are restored
            while (place.stat().st_mtime_ns if place.exists() else 0) == before:
                assert process.is_alive(), "the run ended by itself"
                assert time.monotonic() - began < 60, "no batch came"
                time.sleep(0.005)
            progressed += 1
        time.sleep(wait * 0.2)
        process.kill()
        process.join()
        assert process.exitcode == -9
    delivered = json.loads(place.read_text())["batches"]
    assert progressed >= kills // 2
    assert len(delivered) >= progressed
    assert delivered == list(islice(open_loader(tmp_path), len(delivered)))
