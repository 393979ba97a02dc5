"""Jobs that share a cache of shards are killed while others damage it: what is read is right, and the limit holds."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from energon_dali import DefaultTaskEncoder, ShardCache, WorkerConfig, get_savable_loader, get_train_dataset
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.loader.dataset_folder import prepare as prepare_folder
from tests.loader.dataset_folder import write_shards
from tests.quiet import quiet

SAMPLES = 120
RANKS = 2
KILLS = 2
"""Of each rank, per case."""
BLOCK_BYTES = 64 << 10
LIMIT_BYTES = 1_200_000
"""About half of a dataset."""


def text_of(number: int) -> str:
    """Returns the content of a sample."""
    return f"{number} " * (3000 + 37 * (number % 50))


def open_rank(folder: Path, home: Path, rank: int, seed: int) -> Any:
    """Returns the loader of a rank, which reads a dataset of its own: for the cache it is a job of its own."""
    config = WorkerConfig(rank=rank, world_size=RANKS, num_workers=0, num_streams=2, global_error_handler=quiet)
    dataset = get_train_dataset(
        folder / f"data{rank}",
        worker_config=config,
        batch_size=3,
        shuffle_buffer_size=(1, 10, 60)[seed % 3],
        max_samples_per_sequence=15,
        task_encoder=DefaultTaskEncoder(),
    )
    cache = ShardCache(home, max_bytes=LIMIT_BYTES, block_bytes=BLOCK_BYTES, cache_local=True)
    return get_savable_loader(dataset, shard_cache=cache)


def run_rank(folder: Path, home: Path, rank: int, seed: int, batches: int) -> None:
    """Reads batches and compares every sample with the truth."""
    with open_rank(folder, home, rank, seed) as loader:
        for batch in islice(loader, batches):
            for key, text in zip(batch.__key__, batch.text, strict=True):
                if text != text_of(int(key[1:])):
                    raise Lost(f"sample {key} has another content")
        if loader.stats().counts.get("samples.failed", 0):
            raise Lost("a sample failed")


def start(call: Callable[[], None], report: Path) -> int:
    """Runs `call` in a forked child; if it fails, its exit code is 1, and the reason is in `report`."""
    pid = os.fork()
    if pid:
        return pid
    try:
        call()
    except BaseException:
        report.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def reason(report: Path) -> str:
    """Returns why a child failed."""
    return report.read_text()[-1500:] if report.exists() else "it was killed"


def damage(home: Path, random: Random) -> None:
    """Flips a bit of a file in the cache, cuts it, or removes it."""
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "format.json"]
    if files:
        file = random.choice(files)
        try:
            content = bytearray(file.read_bytes())
            kind = random.randrange(4)
            if kind == 0:
                file.unlink()
            elif kind == 1:
                os.truncate(file, random.randrange(len(content) + 1))
            elif content:
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
                with file.open("r+b") as opened:
                    opened.write(content)
        except FileNotFoundError:
            return


def prepare(folder: Path) -> Case:
    """Creates a dataset per rank; the case kills ranks that share a cache, and damages the cache meanwhile."""
    logging.disable(logging.CRITICAL)
    samples = {f"k{number:03d}": {"txt": text_of(number).encode()} for number in range(SAMPLES)}
    for rank in range(RANKS):
        write_shards(folder / f"data{rank}", samples, 4)
        prepare_folder(folder / f"data{rank}", {"text": "txt"}, "TextSample")

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        home, report = scratch / "cache", scratch / "report.txt"
        damages = number % 2 == 1
        kills = 0
        for _ in range(KILLS):
            ranks = [
                start(lambda rank=rank: run_rank(folder, home, rank, number, 100_000), report)  # type: ignore[misc]
                for rank in range(RANKS)
            ]
            try:
                end = time.monotonic() + random.uniform(0.1, 0.8)
                while time.monotonic() < end:
                    if damages:
                        damage(home, random)
                    time.sleep(0.002)
                for pid in list(ranks):
                    time.sleep(random.uniform(0, 0.05))
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        ranks.remove(pid)
                        raise Lost(f"a rank ended by itself ({status}): {reason(report)}")
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    ranks.remove(pid)
                    kills += 1
            finally:
                for pid in ranks:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        for rank in range(RANKS):  # 80 batches: four epochs of a rank, which evict what the others left
            for file in home.glob("*/jobs/*"):
                os.utime(file, (0, 0))  # they read nothing for a while
            pid = start(lambda rank=rank: run_rank(folder, home, rank, number, 80), report)  # type: ignore[misc]
            if os.waitpid(pid, 0)[1]:
                raise Lost(f"after the kills, a run over the same cache failed: {reason(report)}")
        check_folder(home, damaged=damages)
        return Outcome(tried=kills, survived=kills)

    return case


def check_folder(home: Path, *, damaged: bool) -> None:
    """Raises Lost if the folder is larger than it may be, or if dead processes still hold something."""
    size = sum(path.stat().st_blocks * 512 for path in home.rglob("*"))
    if size > LIMIT_BYTES and not damaged:
        raise Lost(f"the cache has {size} bytes on disk, and {LIMIT_BYTES} are allowed")
    for path in home.glob("*/claims/*"):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Lost(f"{path} is held by a process that is gone") from None
        finally:
            os.close(descriptor)


SHARD_CACHE_KILLS = Campaign("killed with a shard cache", 25, prepare, timeout_seconds=120, cases_per_child=25)
