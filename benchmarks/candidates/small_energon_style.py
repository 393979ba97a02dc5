"""Small samples through a loader with Energon's interface: energon_dali, or megatron-energon, with the same code.

Options: library ("energon_dali" or "megatron.energon"), workers, window, leaves (datasets that the files are divided
into, and blended).
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.small_rows import Batch, measure_smalls, part_of
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_smalls(open_batches, task)


def open_batches(task: Task) -> Iterator[Batch]:
    """Yields batches of an endless training loader."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    library = importlib.import_module(task.options["library"])
    dataset = library.get_train_dataset(
        dataset_path(task),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=int(task.options["workers"])),
        batch_size=task.batch_size,
        shuffle_buffer_size=task.options["window"],
        max_samples_per_sequence=100,
        task_encoder=task_encoder(library, part_of(task)),
    )
    yield from library.get_savable_loader(dataset)


def task_encoder(library: Any, part: str) -> Any:
    """Returns a task encoder that delivers keys and values."""
    import torch

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = library.SampleDecoder(image_decode="torchrgb8")

        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: list[Any]) -> Batch:
            keys = [sample.__key__ for sample in samples]
            if part == "png":
                return keys, torch.stack([sample.image for sample in samples])
            return keys, [sample.text for sample in samples]

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()
