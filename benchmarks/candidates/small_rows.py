"""Measures a stream of small samples: samples per second, and processor time of all processes per sample.

A batch is (keys, values): a list of records, a list of texts, or images as uint8[N, 3, 32, 32].
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.candidates.process_tree import tree_cpu_seconds
from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task
from benchmarks.data.smalls import FACTS, PARTS, SIDE_PIXELS, record_of, text_of

CHECKED_BATCHES = 32

Batch = tuple[list[str], Any]
Open = Callable[[Task], Iterator[Batch]]
"""Opens an endless stream."""


def part_of(task: Task) -> str:
    """Returns the name of the part that the samples of a task have."""
    return PARTS[task.output]


def measure_smalls(open_batches: Open, task: Task) -> dict[str, float]:
    """Returns the numbers of a task; its first batches are compared with what their keys promise before the clock runs.

    Raises:
        WrongOutputError: A sample is not what its key promises.
    """
    numbers: dict[str, float] = {}
    if task.action in ("check", "both"):
        checker = Checker(task)
        began = time.perf_counter()
        batches = open_batches(task)
        numbers["samples_checked"] = float(sum(checker(next(batches)) for _ in range(CHECKED_BATCHES)))
        if task.action == "check":
            return numbers
    else:
        began = time.perf_counter()
        batches = open_batches(task)
        next(batches)
    numbers["first_batch_seconds"] = time.perf_counter() - began
    _take(batches, task.warmup_samples, task.seconds / 2)
    cpu, began = tree_cpu_seconds(), time.perf_counter()
    taken = _take(batches, task.samples, task.seconds)
    seconds, spent = time.perf_counter() - began, tree_cpu_seconds() - cpu
    return {
        **numbers,
        "samples_per_second": taken / seconds,
        "cpu_microseconds_per_sample": spent / taken * 1e6,
        "samples": float(taken),
    }


def _take(batches: Iterator[Batch], samples: int, seconds: float) -> int:
    taken, end = 0, time.perf_counter() + seconds
    while taken < samples and (not seconds or time.perf_counter() < end):
        taken += len(next(batches)[0])
    return taken


class Checker:
    """Compares batches with what their keys promise.

    Args:
        task: Names the kind of samples.
    """

    def __init__(self, task: Task) -> None:
        self._part = part_of(task)
        path = Path(task.options.get("facts", task.dataset)) / FACTS
        self._sums: list[int] = json.loads(path.read_text()) if self._part == "png" else []

    def __call__(self, batch: Batch) -> int:
        """Returns the number of samples.

        Raises:
            WrongOutputError: A sample is not what its key promises.
        """
        keys, values = batch
        if len(keys) != len(values) or not len(keys):
            raise WrongOutputError(f"{len(keys)} keys were delivered for {len(values)} samples.")
        for key, value in zip(keys, values, strict=True):
            number = int(key)
            if self._part == "png":
                if tuple(value.shape) != (3, SIDE_PIXELS, SIDE_PIXELS) or str(value.dtype) != "torch.uint8":
                    raise WrongOutputError(f"The image {key} is {value.dtype}{tuple(value.shape)}.")
                is_right = int(value.sum()) == self._sums[number % len(self._sums)]
            else:
                is_right = value == (record_of(number) if self._part == "json" else text_of(number))
            if not is_right:
                raise WrongOutputError(f"The sample {key} holds {str(value)[:80]!r}.")
        return len(keys)


def samples_of(task: Task) -> Iterator[tuple[str, bytes]]:
    """Yields (key, content) of all samples, in order."""
    for shard in task.shards:
        yield from samples_in(shard)


def samples_in(shard: str) -> Iterator[tuple[str, bytes]]:
    """Yields (key, content) of the samples of a shard, in order."""
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            yield member.name.partition(".")[0], file.read()


def decoded(part: str, content: bytes) -> Any:
    """Returns the value of a sample as a program with a loader that does not decode would: with json, and with PIL."""
    if part == "json":
        return json.loads(content)
    if part == "txt":
        return content.decode()
    import io

    import numpy as np
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def collated(rows: list[tuple[str, Any]]) -> Batch:
    """Returns a batch of (key, value) pairs."""
    keys, values = zip(*rows, strict=True)
    if isinstance(values[0], (str, dict)):
        return list(keys), list(values)
    import torch

    return list(keys), torch.stack(values)
