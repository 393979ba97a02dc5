"""Files opened and processor time per sample of a blend of many datasets, in one process without workers.

Options: library ("energon_dali" or "megatron.energon"), leaves (datasets).
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from typing import Any

from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.scale import cook
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    """Returns what opening costs, and what each sample costs after the warm-up."""
    library = importlib.import_module(task.options["library"])
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    path = dataset_path(task)
    opened = 0

    def count(event: str, arguments: Any) -> None:
        nonlocal opened
        opened += event == "open"

    sys.addaudithook(count)
    began, cpu = time.perf_counter(), time.process_time()
    dataset = library.get_train_dataset(
        path,
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=task.batch_size,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=task_encoder(library),
    )
    loader = library.get_savable_loader(dataset)
    batches = iter(loader)
    next(batches)
    numbers = {
        "first_batch_seconds": time.perf_counter() - began,
        "first_batch_cpu_seconds": time.process_time() - cpu,
        "files_opened_until_first_batch": float(opened),
    }
    for _ in range(task.warmup_samples // task.batch_size):
        next(batches)
    opened, cpu, taken = 0, time.process_time(), 0
    while taken < task.samples:
        taken += next(batches)
    return numbers | {
        "files_opened_per_sample": opened / taken,
        "cpu_microseconds_per_sample": (time.process_time() - cpu) / taken * 1e6,
    }


def task_encoder(library: Any) -> Any:
    """Returns a task encoder that counts samples."""

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = None
        cookers = (library.Cooker(cook),)

        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: list[Any]) -> int:
            return len(samples)

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()
