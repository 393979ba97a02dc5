"""Loaders that start, restore, change workers and close while other threads import modules and open and close files."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.remote.s3_server import S3Server
from energon_dali import DefaultTaskEncoder, ShardCache, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.shards.storage import buckets
from tests.faults.campaign import Campaign, Case, Lost, Outcome
from tests.loader.dataset_folder import prepare, write_shards

LOADERS_PER_CASE = 4
_WORKERS = (0, 1, 2, 4)
_SPAWNED_CASES = 25
"""One of this many cases spawns workers, which takes more than ten times as long."""
_OPEN_FILES = 12
_NULL_DEVICE = os.stat(os.devnull).st_rdev
_MODULES = 20


@contextmanager
def busy_threads(folder: Path) -> Iterator[None]:
    """Context manager in which threads import modules, and open and close files in random order."""
    for number in range(_MODULES):
        (folder / f"imported_{number}.py").write_text("value = [number for number in range(1000)]\n")
    end = threading.Event()
    errors: list[BaseException] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(end)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (_import_modules, _reuse_files)]
    sys.path.insert(0, str(folder))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()
        sys.path.remove(str(folder))
        _forget_modules()
    for error in errors:
        raise Lost(f"a thread of the program failed: {error!r}") from error


def _import_modules(end: threading.Event) -> None:
    while not end.wait(0.02):
        _forget_modules()
        for number in range(_MODULES):
            importlib.import_module(f"imported_{number}")


def _forget_modules() -> None:
    for number in range(_MODULES):
        sys.modules.pop(f"imported_{number}", None)


def _reuse_files(end: threading.Event) -> None:
    random = Random(0)
    opened = [_opened() for _ in range(_OPEN_FILES)]
    while not end.wait(0.0005):
        random.shuffle(opened)
        for descriptor in opened:
            if os.fstat(descriptor).st_rdev != _NULL_DEVICE:
                raise Lost(f"descriptor {descriptor} was closed by somebody else, and is {_target(descriptor)} now")
        for descriptor in opened[::2]:
            os.close(descriptor)
        opened[::2] = [_opened() for _ in opened[::2]]
    for descriptor in opened:
        os.close(descriptor)


def _opened() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _target(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def open_loader(path: str, workers: int, **options: Any) -> Any:
    """Returns a savable loader of small texts in four streams."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=4),
        batch_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        task_encoder=DefaultTaskEncoder(),
    )
    return get_savable_loader(dataset, **options)


def run_loaders(paths: list[str], expected: list[list[str]], random: Random, scratch: Path, method: str) -> None:
    """Runs some loaders, each from the state of the one before it, and changes their workers.

    Args:
        paths: The dataset in its places.
        expected: Keys of its batches, in order.
        random: Draws what happens.
        scratch: Folder for the shard cache.
        method: How workers start.

    Raises:
        Lost: A batch is not the next one, or an error ended a loader.
    """
    state, at, before = None, 0, None
    workers = _WORKERS[:2] if method == "spawn" else _WORKERS
    for _ in range(LOADERS_PER_CASE):
        options: dict[str, Any] = {"start_method": method}
        if random.random() < 0.5:
            options["shard_cache"] = ShardCache(scratch / "cache", max_bytes="16MiB", block_bytes="64KiB")
        if random.random() < 0.5:
            options["read_ahead_bytes"] = random.choice((0, 1 << 20))
        loader = open_loader(random.choice(paths), random.choice(workers), **options)
        loader.restore_state_rank(state)
        did = [f"{options} {loader.worker_config.num_workers} workers"]
        try:
            for _ in range(random.randint(1, 3)):
                count = random.randint(1, 4)
                found = [list(batch.__key__) for batch in islice(loader, count)]
                if found != expected[at : at + count]:
                    raise Lost(f"after {did}: batch {at} is {found} instead of {expected[at : at + count]}")
                at += count
                number = random.choice(workers)
                did.append(f"{count} batches, then {number} workers")
                loader.change_workers(number)
        except Lost:
            raise
        except Exception as error:
            raise Lost(f"after {did}: {type(error).__name__}: {error}") from error
        state = json.loads(json.dumps(loader.save_state_rank()))
        if random.random() < 0.6:
            loader.close()
        before = loader if random.random() < 0.3 else None  # closed when it is collected, or one loader later
    del before


def prepare_loaders(folder: Path) -> Case:
    """Creates a dataset, on disk and on an S3 server; the case runs loaders over it."""
    logging.disable(logging.ERROR)
    samples = {f"{number:03d}": {"txt": f"{number} ".encode() * 200} for number in range(64)}
    write_shards(folder / "data" / "texts", samples, 4)
    prepare(folder / "data" / "texts", {"text": "txt"}, "TextSample")
    path = str(folder / "data" / "texts")
    with open_loader(path, 0) as loader:
        expected = [list(batch.__key__) for batch in islice(loader, LOADERS_PER_CASE * 12)]
    server = S3Server(folder, latency_seconds=0.001)
    server.__enter__()  # ends with this process
    for name in [name for name in os.environ if name.startswith(("AWS_", "MSC_"))]:
        del os.environ[name]
    os.environ.update(server.environment())
    paths = [path, "s3://data/texts"]

    def case(number: int, scratch: Path) -> Outcome:
        (scratch / "modules").mkdir()
        with open_loader(paths[1], 0) as loader:  # what obstore starts in this process stays until its end
            next(iter(loader))
        with busy_threads(scratch / "modules"):
            method = "spawn" if number % _SPAWNED_CASES == _SPAWNED_CASES - 1 else "fork"
            run_loaders(paths, expected, Random(number), scratch, method)
        clients = sum(len(bucket._stores) for bucket in buckets._buckets.values())
        if clients > 1:  # each keeps connections, which are dropped before leftovers are counted
            raise Lost(f"the loaders use {clients} clients of one bucket")
        return Outcome(tried=LOADERS_PER_CASE, survived=LOADERS_PER_CASE)

    return case


LOADERS = Campaign("loaders started and ended", 500, prepare_loaders, cases_per_child=50, timeout_seconds=300)
