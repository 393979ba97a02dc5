"""Measures a stream of samples from the S3 server: speed, processor time of client and server, bytes and requests."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.candidates.process_tree import tree_cpu_seconds
from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task

CHECKED_BATCHES = 4
"""The first batches of each worker carry the sums of their samples, which are compared before the clock starts."""
PATIENCE = 40
"""A loader whose first batch takes longer than this many times the timed part counts with a speed of 0."""

EPOCH_PARTS = 6
"""Most time for the least samples, or for a whole epoch, in units of the timed part of the others."""

Row = tuple[str, int]
"""Key of a sample, and the sum of its bytes or pixels; -1 after the first batches."""
Open = Callable[[Task], Iterator[list[Row]]]
"""Opens a stream of batches."""


def measure_rows(open_rows: Open, task: Task) -> dict[str, float]:
    """Returns the numbers of a task.

    Raises:
        WrongOutputError: A sample is not what its key promises, or none was checked.
    """
    signal.signal(signal.SIGALRM, _give_up)
    patience = PATIENCE * task.seconds
    signal.setitimer(signal.ITIMER_REAL, patience)
    began = time.perf_counter()
    try:
        batches = open_rows(task)
        rows = next(batches)
    except TimeoutError:
        for child in psutil.Process().children(recursive=True):
            child.kill()
        return {"samples_checked": 0.0, "samples_per_second": 0.0, "first_batch_seconds": patience}
    signal.setitimer(signal.ITIMER_REAL, 0)
    first = time.perf_counter() - began
    numbers = {"first_batch_seconds": first}
    if task.options.get("one_epoch"):
        numbers |= _measure_epoch(batches, rows, task)
        numbers["samples_checked"] = float(check_rows(rows, task))
        return numbers
    # Drains what was queued since the first batch, and all batches with sums.
    end = time.perf_counter() + task.seconds / 2
    while time.perf_counter() < end and len(rows) < task.samples // 3:
        rows += next(batches)
    numbers["samples_checked"] = float(check_rows(rows, task))
    # What was fetched before the clock started must be a small part of what is counted, so that slow ones take longer.
    least = int(task.options.get("least_samples", 0))
    meter, taken, began = Meter(task), 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < task.seconds or (
        taken < least and passed < EPOCH_PARTS * task.seconds
    ):
        taken += len(next(batches))
    return numbers | meter.numbers(taken)


def _measure_epoch(batches: Iterator[list[Row]], rows: list[Row], task: Task) -> dict[str, float]:
    """Returns the numbers of the rest of an epoch, for loaders that keep what they fetched on the disk.

    A part of the epoch would say nothing: they fetch far ahead, and then read the disk.
    """
    meter, taken = Meter(task), 0
    end = time.perf_counter() + EPOCH_PARTS * task.seconds
    while time.perf_counter() < end and (batch := next(batches, None)) is not None:
        taken += len(batch)
        rows += batch
    return meter.numbers(taken)


def _give_up(*_: Any) -> None:
    raise TimeoutError


class Meter:
    """Counts from its creation on.

    Args:
        task: The task; with no server, only what the client costs is counted.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._before = server_counters(task)
        self._cpu = tree_cpu_seconds()
        self._began = time.perf_counter()

    def requests(self) -> float:
        """Returns the number of requests since."""
        after = server_counters(self._task)
        return float(sum(after["requests"].values()) - sum(self._before["requests"].values()))

    def numbers(self, samples: int) -> dict[str, float]:
        """Returns the numbers of what happened since, per second and per sample."""
        seconds = time.perf_counter() - self._began
        cpu = tree_cpu_seconds() - self._cpu
        found = {
            "samples_per_second": samples / seconds,
            "client_cpu_microseconds_per_sample": cpu / max(samples, 1) * 1e6,
        }
        after = server_counters(self._task)
        if not after:
            return {**found, "samples_per_second_without_server": samples / seconds}
        counted = {name: after[name] - self._before[name] for name in ("cpu_seconds", "busy_seconds")}
        sent = after["bytes_sent"] - self._before["bytes_sent"]
        busy, asked = counted["busy_seconds"], after["request_seconds"] - self._before["request_seconds"]
        cores = len(os.sched_getaffinity(0))
        return {
            **found,
            # What the client would have reached if the server had run elsewhere, with all cores busy.
            "samples_per_second_without_server": samples / max(seconds - counted["cpu_seconds"] / cores, 1e-9),
            "server_cpu_microseconds_per_sample": counted["cpu_seconds"] / max(samples, 1) * 1e6,
            "busy_cores": (cpu + counted["cpu_seconds"]) / seconds,
            "requests_per_sample": self.requests() / max(samples, 1),
            "bytes_fetched_over_wanted": sent / max(samples, 1) / wanted_bytes(self._task),
            "megabytes_per_second": sent / seconds / 1e6,
            "requests_in_flight": asked / busy if busy else 0.0,
            "most_requests_in_flight": float(after["most_in_flight"]),
        }


def server_counters(task: Task) -> dict[str, Any]:
    """Returns what the server has counted; nothing if the files are local."""
    if not task.url or task.options.get("local"):
        return {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{os.environ['AWS_ENDPOINT_URL']}/-/counters", timeout=30) as answer:
        counters: dict[str, Any] = json.load(answer)
    return counters


def own_shards(task: Task) -> list[str]:
    """Returns the shards of a task without those that are only links to others."""
    return list({Path(path).stat().st_ino: path for path in reversed(task.shards)}.values())[::-1]


def wanted_bytes(task: Task) -> float:
    """Returns the mean number of bytes in the parts of a sample, without headers and padding."""
    total, keys = 0, set()
    with tarfile.open(own_shards(task)[0]) as tar:
        for member in tar:
            total += member.size
            keys.add(member.name.partition(".")[0])
    return total / len(keys)


def part_of(task: Task) -> str:
    """Returns the name of the part that is compared."""
    return "txt" if task.output == "text" else "jpg"


def check_rows(rows: list[Row], task: Task) -> int:
    """Compares the sums of samples with the files, and returns their number.

    Raises:
        WrongOutputError: A sum is wrong, or there is none.
    """
    summed = [row for row in rows if row[1] >= 0]
    keys = {key for key, _ in rows}
    right = pixel_sums(task) if task.output == "decoded" else byte_sums(task, keys)
    wrong = [key for key, value in summed if right[key] != value]
    if wrong or not summed or keys - right.keys():
        raise WrongOutputError(f"{len(wrong)} of {len(summed)} samples are wrong: {wrong[:3]}.")
    return len(summed)


def pixel_sums(task: Task) -> dict[str, int]:
    """Returns the sum of all RGB values of each sample."""
    facts = json.loads((Path(task.dataset) / "facts.json").read_text())
    return {key: fact[2] for key, fact in facts.items()}


def byte_sums(task: Task, keys: set[str]) -> dict[str, int]:
    """Returns the CRC of the compared part of some samples."""
    found = {}
    for path in own_shards(task):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                if key in keys and part == part_of(task):
                    file = tar.extractfile(member)
                    assert file is not None
                    found[key] = zlib.crc32(file.read())
    return found


def samples_of(task: Task) -> Iterator[dict[str, Any]]:
    """Yields the samples of all shards that are not links, in order: {"__key__": key, part: bytes}."""
    for path in own_shards(task):
        sample: dict[str, Any] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                file = tar.extractfile(member)
                assert file is not None
                sample["__key__"] = key
                sample[part] = file.read()
        yield sample


class RowMaker:
    """Makes the rows of samples that are still encoded.

    Args:
        task: The task.
    """

    def __init__(self, task: Task) -> None:
        self._decoded = task.output == "decoded"
        self._summed = CHECKED_BATCHES * task.batch_size

    def __call__(self, key: str, content: bytes) -> Row:
        """Returns the row of a sample, after decoding its JPEG if that is wanted."""
        self._summed -= 1
        if not self._decoded:
            return key, zlib.crc32(content) if self._summed >= 0 else -1
        import io

        import numpy as np
        from PIL import Image

        with Image.open(io.BytesIO(content)) as image:
            pixels = np.asarray(image.convert("RGB"))
        return key, int(pixels.sum(dtype=np.int64)) if self._summed >= 0 else -1
