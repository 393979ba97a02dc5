"""energon_dali or megatron-energon, reading from the S3 server with two workers; the same code for both.

Batches hold keys alone, so that reading and decoding are measured, and not the way of the bytes to the trainer.
Options: library, window (0 for none), lanes (`parallel_shard_iters`, 0 for the default), workers, decoder ("sample", or
"dali" for energon_dali's DaliDecoder on the CPU), local (reads the same files from the disk).
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

from benchmarks.candidates.remote_meter import CHECKED_BATCHES, Row, measure_rows, part_of
from benchmarks.candidates.scale import cook
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_rows(open_rows, task)


def open_rows(task: Task) -> Iterator[list[Row]]:
    """Yields batches without end."""
    loader = open_loader(task, task_encoder(task))
    while True:
        yield from loader


def open_loader(task: Task, encoder: Any, path: str = "") -> Any:
    """Returns the savable loader over the training part.

    Args:
        task: The task.
        encoder: The task encoder.
        path: Dataset or metadataset within the bucket, instead of that of the task.
    """
    library = importlib.import_module(task.options["library"])
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    window = int(task.options.get("window", 0))
    lanes = int(task.options.get("lanes", 0))
    dataset = library.get_train_dataset(
        dataset_url(task, path),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=int(task.options.get("workers", 2))),
        batch_size=task.batch_size,
        shuffle_buffer_size=window if window > 1 else None,
        max_samples_per_sequence=None,
        task_encoder=encoder,
        **({"parallel_shard_iters": lanes} if lanes else {}),
    )
    return library.get_savable_loader(dataset)


def dataset_url(task: Task, path: str = "") -> str:
    """Returns where the library finds the dataset. megatron-energon needs a profile of multi-storage-client."""
    if task.options.get("local"):
        return task.dataset
    url = f"{task.url.rpartition('/')[0]}/{path}" if path else task.url
    if task.options["library"] == "energon_dali":
        return url
    options = {"base_path": "", "endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    profiles = {"benchmark": {"storage_provider": {"type": "s3", "options": options}}}
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:  # workers read it too
        json.dump({"profiles": profiles}, file)
    os.environ["MSC_CONFIG"] = file.name
    return url.replace("s3://", "msc://benchmark/", 1)


def task_encoder(task: Task) -> Any:
    """Returns a task encoder whose batches are rows."""
    library: Any = importlib.import_module(task.options["library"])
    part = part_of(task)
    decoded = task.output == "decoded"

    if task.options.get("decoder") == "dali":
        made = library.DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    else:
        made = library.SampleDecoder(image_decode="torchrgb8")

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = made if decoded else None
        cookers = (library.Cooker(cook),)

        def encode_sample(self, sample: Any) -> Any:
            return sample

        def batch(self, samples: list[Any]) -> list[Row]:
            self.batches = getattr(self, "batches", 0) + 1
            # megatron-energon puts the path of the shard before the key.
            keys = [sample["__key__"].rpartition("/")[2] for sample in samples]
            if self.batches > CHECKED_BATCHES:
                return [(key, -1) for key in keys]
            return list(zip(keys, (self.sum_of(sample[part]) for sample in samples), strict=True))

        @staticmethod
        def sum_of(content: Any) -> int:
            return int(content.long().sum()) if decoded else zlib.crc32(content)

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()
