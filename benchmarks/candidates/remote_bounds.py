"""What the server and the client of object stores allow, without any loader.

Options: bound ("shards": whole shards, one after the other in one thread; "ranges": samples in random order, each with
one request), in_flight (requests at a time, for ranges).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.remote_meter import Meter, own_shards
from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task

HEADER_BYTES = 512
CHECKED_SAMPLES = 16


def measure(task: Task) -> dict[str, float]:
    """Returns the numbers of a bound.

    Raises:
        WrongOutputError: The bytes are not those of the files.
    """
    store = open_store(task)
    if task.options["bound"] == "shards":
        return _whole_shards(store, task)
    return asyncio.run(_random_ranges(store, task))


def open_store(task: Task) -> Any:
    """Returns the bucket, as obstore sees it."""
    from obstore.store import S3Store

    bucket, _, prefix = task.url.removeprefix("s3://").partition("/")
    return S3Store(
        bucket,
        prefix=prefix,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region=os.environ["AWS_REGION"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def _names(task: Task) -> Iterator[str]:
    yield from itertools.cycle([os.path.basename(path) for path in task.shards])


def _whole_shards(store: Any, task: Task) -> dict[str, float]:
    import obstore

    counts = {path: len(extents) for path, extents in _extents(task).items()}
    per_shard = {os.path.basename(path): count for path, count in zip(task.shards, _cycled(task, counts), strict=True)}
    names = _names(task)
    name = next(names)
    if zlib.crc32(obstore.get(store, name).bytes()) != zlib.crc32(Path(task.shards[0]).read_bytes()):
        raise WrongOutputError(f"{name} is not the file.")
    meter, taken, end = Meter(task), 0, time.perf_counter() + task.seconds
    while taken < task.samples and time.perf_counter() < end:
        name = next(names)
        obstore.get(store, name).bytes()
        taken += per_shard[name]
    return {"samples_checked": float(per_shard[name]), **meter.numbers(taken)}


async def _random_ranges(store: Any, task: Task) -> dict[str, float]:
    import obstore

    extents = _extents(task)
    by_shard = list(_cycled(task, extents))
    names = [os.path.basename(path) for path in task.shards]
    drawn = random.Random(0)

    def draw() -> tuple[str, int, int]:
        number = drawn.randrange(len(by_shard))
        first, stop = drawn.choice(by_shard[number])
        return names[number], first, stop - first

    for _ in range(CHECKED_SAMPLES):
        name, offset, size = draw()
        content = bytes(await obstore.get_range_async(store, name, start=offset, length=size))
        descriptor = os.open(os.path.join(task.dataset, name), os.O_RDONLY)
        if os.pread(descriptor, size, offset) != content:
            raise WrongOutputError(f"Bytes {offset} to {offset + size} of {name} are not those of the file.")
        os.close(descriptor)
    taken = 0

    async def read() -> None:
        nonlocal taken
        while taken < task.samples and time.perf_counter() < end:
            name, offset, size = draw()
            await obstore.get_range_async(store, name, start=offset, length=size)
            taken += 1

    # The connections are opened before the clock starts.
    end = time.perf_counter() + task.seconds / 2
    await asyncio.gather(*(read() for _ in range(int(task.options["in_flight"]))))
    taken = 0
    meter, end = Meter(task), time.perf_counter() + task.seconds
    await asyncio.gather(*(read() for _ in range(int(task.options["in_flight"]))))
    return {"samples_checked": float(CHECKED_SAMPLES), **meter.numbers(taken)}


def _extents(task: Task) -> dict[str, list[tuple[int, int]]]:
    """Returns (start, stop) of the samples of each shard that is not a link, from the first header on, in bytes."""
    found = {}
    for path in own_shards(task):
        extents: dict[str, tuple[int, int]] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                key = member.name.partition(".")[0]
                first, _ = extents.get(key, (member.offset_data - HEADER_BYTES, 0))
                extents[key] = (first, member.offset_data + member.size)
        found[path] = list(extents.values())
    return found


def _cycled(task: Task, by_path: dict[str, Any]) -> Iterator[Any]:
    """Yields the entry of each shard; links have that of the shard they lead to."""
    by_file = {os.stat(path).st_ino: value for path, value in by_path.items()}
    for path in task.shards:
        yield by_file[os.stat(path).st_ino]
