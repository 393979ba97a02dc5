"""energon_dali or megatron-energon, reading from the S3 server with two workers; the same code for both.

Batches hold keys alone, so that reading and decoding are measured, and not the way of the bytes to the trainer.
Options: library, window (0 for none), lanes (`parallel_shard_iters`, 0 for the default), workers, decoder ("sample", or
"dali" for energon_dali's DaliDecoder on the CPU), local (reads the same files from the disk), packs (of energon_dali:
about that many samples in each, planned in windows of `window` from lengths that are drawn; nothing is measured).
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.candidates.remote_meter import CHECKED_BATCHES, Row, measure_rows, part_of
from benchmarks.candidates.scale import cook
from benchmarks.candidates.task import Task

MEAN_LENGTH = 100


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
    packs = int(task.options.get("packs", 0))
    how: dict[str, Any] = {"batch_size": task.batch_size}
    if packs:
        draw_lengths()
        size = max(1, task.batch_size // packs)  # about as many samples as a batch has
        planned = library.PlannedPacks(packs * MEAN_LENGTH, window=window, real_length=None)
        how = {"batch_size": size, "global_batch_size": 8 * size, "packs": planned}
    dataset = library.get_train_dataset(
        dataset_url(task, path),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=int(task.options.get("workers", 2))),
        **how,
        shuffle_buffer_size=window if window > 1 else None,
        max_samples_per_sequence=None,
        task_encoder=encoder,
        **({"parallel_shard_iters": lanes} if lanes else {}),
    )
    loader = library.get_savable_loader(dataset)
    if task.options["library"] != "energon_dali":
        close_connections()
    return loader


def close_connections() -> None:
    """Closes connections of multi-storage-client, which forked workers would share, mixing up each other's answers."""
    shortcuts = importlib.import_module("multistorageclient.shortcuts")
    for client in shortcuts._STORAGE_CLIENT_CACHE.values():
        client.delegate._storage_provider._s3_client.close()


def draw_lengths() -> None:
    """Lets every dataset have lengths of 1 to 2 x MEAN_LENGTH - 1, drawn by the numbers of its samples."""
    from energon_dali.assembly import measured_plan

    setattr(measured_plan, "open_measures", lambda source, *_, **__: DrawnLengths(source.num_samples))  # noqa: B010


@dataclass(frozen=True)
class DrawnLengths:
    """Lengths in place of measures."""

    num_samples: int
    identity: str = "drawn"
    names: tuple[str, ...] = ("text_tokens",)

    def take(self, name: str, numbers: Any) -> Any:
        """Returns lengths."""
        return 1 + (numbers * 2654435761 >> 8) % (2 * MEAN_LENGTH - 1)


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

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return {"__key__": samples[0]["__key__"], "samples": samples}

        def batch(self, samples: list[Any]) -> list[Row]:
            if "samples" in samples[0]:
                samples = [sample for pack in samples for sample in pack["samples"]]
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
