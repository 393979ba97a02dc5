"""CPU time per sample of a blend and of one dataset of the same files, in alternating batches in one process.

What else the machine does meanwhile slows both, so that their ratio holds where throughput would be noise. Options:
those of energon_style; `leaves` is the number of datasets.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import torch

import energon_dali
from benchmarks.candidates.energon_style import make_decoder
from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.task import Task
from energon_dali.datasets.stream import StreamContext
from energon_dali.datasets.worker_border import WorkerBorder

STREAMS = 2


class Encoder(energon_dali.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Counts the samples of a batch; the later steps cost the same for both."""

    def batch(self, samples: list[Any]) -> int:
        return len(samples)

    def encode_batch(self, batch: int) -> int:
        return batch


def measure(task: Task) -> dict[str, float]:
    """Returns microseconds of CPU per sample in a worker, of one dataset and of the blend, and their ratio."""
    torch.set_num_threads(1)
    alone = dataclasses.replace(task, options={**task.options, "leaves": 1})
    streams = [_blocks(alone), _blocks(task)]
    spent: list[list[float]] = [[], []]
    for stream in streams:  # until all datasets are open
        for _ in range(-(-task.warmup_samples // task.batch_size)):
            stream.next_block()
    for turn in range(-(-task.samples // task.batch_size)):
        for place in (0, 1) if turn % 2 else (1, 0):
            began = time.process_time()
            streams[place].next_block()
            spent[place].append((time.process_time() - began) / task.batch_size * 1e6)
    one, blend = map(statistics.median, spent)
    return {"one_microseconds": one, "blend_microseconds": blend, "one_over_blend": one / blend}


def _blocks(task: Task) -> Any:
    """Returns what a worker runs for one stream."""
    encoder = Encoder()
    encoder.decoder = make_decoder(energon_dali, task)
    dataset = energon_dali.get_train_dataset(
        dataset_path(task),
        worker_config=energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=1, num_streams=STREAMS),
        batch_size=task.batch_size,
        task_encoder=encoder,
        shuffle_buffer_size=task.options.get("shuffle_window"),
    )
    assert isinstance(dataset, WorkerBorder)
    return dataset.open_blocks(StreamContext(0))
