"""Costs of a large dataset: opening it, the first sample, the worker's processor time per sample, and its memory.

The loader is that of a training run, with one worker, which is observed from outside. Options: library ("energon_dali"
or "megatron.energon"), window, max_samples_per_sequence.
"""

from __future__ import annotations

import importlib
import os
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.candidates.stream import WrongOutputError
from benchmarks.candidates.task import Task

MEBIBYTE = 1 << 20


def measure(task: Task) -> dict[str, float]:
    """Returns the numbers of one worker.

    Raises:
        WrongOutputError: A sample is not what its key promises.
    """
    library = importlib.import_module(task.options["library"])
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    cpu = time.process_time()
    began = time.perf_counter()
    dataset = library.get_train_dataset(
        task.dataset,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=1),
        batch_size=task.batch_size,
        shuffle_buffer_size=task.options["window"],
        max_samples_per_sequence=task.options["max_samples_per_sequence"],
        task_encoder=task_encoder(library),
    )
    loader = library.get_savable_loader(dataset)
    numbers = {"opening_seconds": time.perf_counter() - began, "opening_cpu_seconds": time.process_time() - cpu}
    batches = iter(loader)
    check(next(batches))
    numbers["first_sample_seconds"] = time.perf_counter() - began
    worker = find_worker()
    before, taken_before = cpu_seconds(worker), take(batches, task.warmup_samples, 0.0)
    before = cpu_seconds(worker)
    started = time.perf_counter()
    taken = take(batches, task.samples, task.seconds)
    numbers["samples_per_second"] = taken / (time.perf_counter() - started)
    numbers["cpu_microseconds_per_sample"] = (cpu_seconds(worker) - before) / taken * 1e6
    numbers["samples"] = taken_before + taken
    return numbers | memory(worker)


def task_encoder(library: Any) -> Any:
    """Returns a task encoder that delivers keys and texts."""

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = None
        cookers = (library.Cooker(cook),)

        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: list[Any]) -> list[tuple[str, bytes]]:
            return [(sample["__key__"], bytes(sample["txt"])) for sample in samples]

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()


def cook(sample: Any) -> Any:
    return sample


cook.__stateless__ = True  # type: ignore[attr-defined]


def check(batch: Any) -> int:
    """Returns the number of samples of a batch, after comparing each with its key."""
    for key, text in batch:
        words = f"sample {int(key)}, {zlib.crc32(int(key).to_bytes(8, 'little')):08x}; "
        if not text.startswith(words.encode()):
            raise WrongOutputError(f"The sample {key} holds {text[:40]!r}.")
    return len(batch)


def take(batches: Iterator[Any], samples: int, seconds: float) -> int:
    """Takes samples, for a limited time if there is one, and returns their number."""
    taken = 0
    end = time.perf_counter() + seconds
    while taken < samples and (not seconds or time.perf_counter() < end):
        taken += check(next(batches))
    return taken


def find_worker() -> psutil.Process:
    """Returns the process that reads: of all descendants the one that has worked most."""
    return max(psutil.Process().children(recursive=True), key=cpu_seconds)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def memory(process: psutil.Process) -> dict[str, float]:
    """Returns what a process occupies, in MiB: all of it, what is its alone, and of that the pages of mapped indices.

    Pages of a mapped file belong to the page cache, which gives them up when memory is short. As long as no second
    process maps them, the kernel counts them as the process's own.
    """
    full = process.memory_full_info()
    mapped = 0
    inside = False
    for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            inside = line.endswith("extents.bin")
        elif inside and first in ("Private_Clean:", "Private_Dirty:"):  # dirty just after they were written
            mapped += 1024 * int(line.split()[1])
    return {
        "rss_mib": full.rss / MEBIBYTE,
        "uss_mib": full.uss / MEBIBYTE,
        "uss_of_mapped_index_mib": mapped / MEBIBYTE,
        "uss_without_mapped_index_mib": (full.uss - mapped) / MEBIBYTE,
        "open_files": float(len(os.listdir(f"/proc/{process.pid}/fd"))),
    }
