"""Full disks: existing data stays intact, the error is ours, and training continues if writing is not essential."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from energon_dali import (
    DefaultTaskEncoder,
    FileStoreCachePool,
    ShardCache,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.loader.state_file import read_state_file, write_state_files
from energon_dali.shards import StoragePath, prepare_dataset
from tests.cache.files import Numbers
from tests.faults.campaign import Campaign, Case, Lost, Outcome, refused_by_us
from tests.faults.kills import strays
from tests.faults.tars import read_all
from tests.loader.dataset_folder import prepare as prepare_folder
from tests.loader.dataset_folder import write_shards
from tests.quiet import quiet

_MOUNT_FLAGS = 0
_LAZY = 2


@contextmanager
def small_disk(scratch: Path, kilobytes: int) -> Iterator[bool]:
    """Mounts a small file system at a folder; yields False if this process may not."""
    scratch.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={kilobytes}k".encode()
    if os.geteuid() != 0 or libc.mount(b"tmpfs", str(scratch).encode(), b"tmpfs", _MOUNT_FLAGS, options) != 0:
        yield False
        return
    try:
        yield True
    finally:
        libc.umount2(str(scratch).encode(), _LAZY)


@contextmanager
def small_files(kilobytes: int) -> Iterator[None]:
    """Limits the size of files, like a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def prepare(folder: Path) -> Case:
    """Creates a dataset; the case fills the disk while something is written."""
    logging.disable(logging.CRITICAL)
    samples = {f"k{number:04d}": {"txt": f"text {number}".encode(), "json": b"{}"} for number in range(150)}
    write_shards(folder / "fresh", samples, 3)
    shutil.copytree(folder / "fresh", folder / "prepared")
    prepare_dataset(folder / "prepared")
    whole = read_all(folder / "prepared")
    size = sum(path.stat().st_size for path in (folder / "prepared").rglob("*") if path.is_file()) // 1024
    tars = sum(path.stat().st_size for path in (folder / "fresh").rglob("*") if path.is_file()) // 1024
    prepare_folder(shutil.copytree(folder / "fresh", folder / "train"), {"text": "txt"}, "TextSample")
    kinds = (
        full_while_preparing,
        full_while_preparing_again,
        full_while_saving,
        full_log,
        full_cache,
        full_shard_cache,
    )
    assert samples

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        kind = kinds[number % len(kinds)]
        return kind(folder, scratch, random, whole, tars, size)

    return case


def full_while_preparing(folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int) -> Outcome:
    """A first prepare: it fails or succeeds, and succeeds once there is space."""
    with small_disk(scratch / "disk", size * 2 + 200) as mounted:
        data = scratch / "disk" / "data"
        shutil.copytree(folder / "fresh", data)
        error = _prepare_with_little(data, scratch, random, mounted)
        prepare_dataset(data)
        _compare(data, whole, "fresh")
    return Outcome(survived=int(error is None), refused=int(error is not None))


def full_while_preparing_again(
    folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int
) -> Outcome:
    """A second prepare: the existing dataset stays intact, and keeps its identity."""
    with small_disk(scratch / "disk", size * 2 + 200) as mounted:
        data = scratch / "disk" / "data"
        shutil.copytree(folder / "prepared", data)
        identity = (data / ".nv-meta" / "index.uuid").read_text()
        error = _prepare_with_little(data, scratch, random, mounted)
        _compare(data, whole, "prepared")
        prepare_dataset(data)
        _compare(data, whole, "prepared")
        if (data / ".nv-meta" / "index.uuid").read_text() != identity:
            raise Lost("the identity changed")
    return Outcome(survived=int(error is None), refused=int(error is not None))


def _prepare_with_little(data: Path, scratch: Path, random: Random, mounted: bool) -> Any:
    if not mounted:
        with small_files(random.randrange(1, 40)):
            return refused_by_us(lambda: prepare_dataset(data), "prepare")
    ballast = scratch / "disk" / "ballast"
    free = shutil.disk_usage(scratch / "disk").free
    ballast.write_bytes(bytes(max(0, free - 1024 * random.randrange(0, 120))))
    error = refused_by_us(lambda: prepare_dataset(data), "prepare")
    ballast.unlink()
    if error is not None and strays(data):
        raise Lost(f"a refused prepare left {strays(data)}")
    return error


def _compare(data: Path, whole: Any, what: str) -> None:
    if read_all(data) != whole:
        raise Lost(f"{what}: the samples differ after the disk was full")


def _loader(folder: Path, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1, global_error_handler=quiet, **options)
    dataset = get_train_dataset(
        folder / "train",
        batch_size=4,
        worker_config=config,
        task_encoder=DefaultTaskEncoder(),
        shuffle_buffer_size=10,
        max_samples_per_sequence=None,
    )
    return get_savable_loader(dataset)


def full_while_saving(folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int) -> Outcome:
    """A state is saved over an older one: the older one stays if the new one does not fit."""
    suffix = random.choice((".json", ".pt", ".pth"))
    with _loader(folder) as loader, small_disk(scratch / "disk", 64) as mounted:
        file = scratch / "disk" / f"state{suffix}"
        first, second = [loader.save_state_rank() for _ in islice(loader, 2)]
        write_state_files({file: first}, wrapped=False)
        if mounted:
            free = shutil.disk_usage(scratch / "disk").free
            (scratch / "disk" / "ballast").write_bytes(bytes(free))
            error = refused_by_us(lambda: write_state_files({file: second}, wrapped=False), f"state{suffix}")
            (scratch / "disk" / "ballast").unlink()
        else:
            with small_files(0):
                error = refused_by_us(lambda: write_state_files({file: second}, wrapped=False), f"state{suffix}")
        (found,) = read_state_file(file).states
        if json.dumps(found) != json.dumps(first if error else second):
            raise Lost(f"state{suffix}: the older state is gone")
        if strays(scratch / "disk") or len(list((scratch / "disk").iterdir())) > 1:
            raise Lost(f"state{suffix}: left {sorted((scratch / 'disk').iterdir())}")
    return Outcome(survived=int(error is None), refused=int(error is not None))


def full_log(folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int) -> Outcome:
    """The debug log fills the disk: batches are the same as without it."""
    with small_disk(scratch / "disk", 4) as mounted:
        log = scratch / "disk" / "log.jsonl"
        with _loader(folder, worker_debug_path=str(log), worker_log_level=1) as loader, _loader(folder) as plain:
            expected = [batch.__key__ for batch in islice(plain, 60)]
            if mounted:
                found = [batch.__key__ for batch in islice(loader, 60)]
            else:
                with small_files(1):
                    found = [batch.__key__ for batch in islice(loader, 60)]
        if found != expected:
            raise Lost("batches differ with a full log")
    return Outcome()


def full_cache(folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int) -> Outcome:
    """The disk of the cache is full: files are read from their store."""
    with small_disk(scratch / "disk", 16) as mounted:
        if not mounted:
            return Outcome()
        store = Numbers(size=random.choice((2_000, 30_000)))
        with closing(FileStoreCachePool(parent_cache_dir=scratch / "disk", num_workers=2)) as pool:
            asked = [(str(number), pool.get_lazy(store, str(number))) for number in range(8)]
            for key, lazy in asked:
                if bytes(lazy.get(object())) != key.encode() * store.size:
                    raise Lost(f"file {key} of the store is other than it was")
        left = [path for path in (scratch / "disk").rglob("*") if path.is_file()]
        if left:
            raise Lost(f"the pool left {left}")
    return Outcome()


def full_shard_cache(folder: Path, scratch: Path, random: Random, whole: Any, tars: int, size: int) -> Outcome:
    """The disk of the cache of shards is smaller than its limit: shards are read as if there were no cache."""
    with small_disk(scratch / "disk", random.choice((8, 64, 200, 400))) as mounted:
        if not mounted:
            return Outcome()
        shards = []
        for name in "abc":
            content = random.randbytes(300_000)
            (scratch / name).write_bytes(content)
            shards.append((StoragePath.of(scratch / name), content))
        cache = ShardCache(scratch / "disk", max_bytes="1GB", block_bytes="64KiB", cache_local=True)
        for _ in range(2):
            for path, content in shards:
                reader = cache.open(path, len(content))
                for _ in range(20):
                    start, length = random.randrange(len(content)), random.randrange(1, 100_000)
                    if reader.read_at(start, length) != content[start : start + length]:
                        raise Lost("a shard has another content with a full disk")
        if list((scratch / "disk").glob("*/claims/*")):
            raise Lost("a claim was left on the full disk")
        del reader, cache
    return Outcome()


DISKS = Campaign("full disks", 100, prepare, cases_per_child=50, warm_cases=5)
