"""Costs of many streams over a large dataset, opened in one process as its workers would open them.

So what a stream adds shows without the memory of a process. Options: streams, window, max_samples_per_sequence.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Sequence

import psutil

import energon_dali
from benchmarks.candidates.scale import check, memory, task_encoder
from benchmarks.candidates.task import Task
from energon_dali.datasets.stream import StreamContext
from energon_dali.datasets.worker_border import BlockIterator, WorkerBorder


def measure(task: Task) -> dict[str, float]:
    """Returns CPU time of opening, of the first batch of all streams, and of a sample; and what is added to memory.

    Raises:
        WrongOutputError: A sample is not what its key promises.
    """
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    streams = int(task.options["streams"])
    encoder = task_encoder(energon_dali)
    gc.collect()
    before = memory(psutil.Process())["uss_without_mapped_index_mib"]
    clock = Clock()
    dataset = energon_dali.get_train_dataset(
        task.dataset,
        worker_config=energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=1, num_streams=streams),
        batch_size=task.batch_size,
        shuffle_buffer_size=task.options["window"],
        max_samples_per_sequence=task.options["max_samples_per_sequence"],
        task_encoder=encoder,
    )
    assert isinstance(dataset, WorkerBorder)
    numbers = clock.numbers("opening")
    opened = [dataset.open_blocks(StreamContext(stream)) for stream in range(streams)]
    _take([opened[0]])
    numbers |= clock.numbers("first_batch")
    _take(opened[1:])
    rest = clock.numbers("others")
    numbers["cpu_milliseconds_per_further_stream"] = rest["others_cpu_seconds"] * 1e3 / max(1, streams - 1)
    turns = -(-task.samples // (task.batch_size * streams))
    for _ in range(-(-task.warmup_samples // (task.batch_size * streams))):
        _take(opened)
    cpu, taken = time.process_time(), 0
    for _ in range(turns):
        taken += _take(opened)
    numbers["cpu_microseconds_per_sample"] = (time.process_time() - cpu) / taken * 1e6
    used = memory(psutil.Process())
    numbers["mapped_index_mib"] = used["uss_of_mapped_index_mib"]
    numbers["added_mib"] = used["uss_without_mapped_index_mib"] - before
    return numbers


def _take(streams: Sequence[BlockIterator]) -> int:
    """Takes a block of each stream, and returns the number of samples."""
    return sum(check(batch) for stream in streams for batch in stream.next_block().elements)


class Clock:
    """Measures one step after the other."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def numbers(self, step: str) -> dict[str, float]:
        """Returns wall and CPU time since the last call, as those of a step."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = {f"{step}_seconds": wall - self._wall, f"{step}_cpu_seconds": cpu - self._cpu}
        self._wall, self._cpu = wall, cpu
        return found
