"""Only Pillow: processes decode files that are in their memory, and deliver nothing. Option: processes."""

from __future__ import annotations

import io
import multiprocessing
import tarfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    if task.action == "check":
        return measure_stream(_open, task)
    return {"samples_per_second": _time_processes(task, int(task.options.get("processes", 2)))}


def _decode(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def _files(shards: list[str]) -> list[tuple[str, bytes]]:
    found = []
    for shard in shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if member.name.endswith(".jpg") and (file := tar.extractfile(member)) is not None:
                    found.append((member.name.partition(".")[0], file.read()))
    return found


def _open(task: Task, with_keys: bool) -> Iterator[Delivered]:
    files = _files(task.shards)
    while True:
        for first in range(0, len(files), task.batch_size):
            some = files[first : first + task.batch_size]
            yield Delivered([torch.from_numpy(_decode(data)) for _, data in some], [key for key, _ in some])


def _time_processes(task: Task, processes: int) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    share = task.samples // processes
    workers = [
        context.Process(target=_worker, args=(task.shards[number::processes], share, barrier, results))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    seconds: list[float] = [results.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    return share * processes / max(seconds)


def _worker(shards: list[str], samples: int, barrier: Any, results: Any) -> None:
    files = [data for _, data in _files(shards)]
    for data in files[:32]:
        _decode(data)
    barrier.wait(60)
    start = time.perf_counter()
    for number in range(samples):
        _decode(files[number % len(files)])
    results.put(time.perf_counter() - start)
