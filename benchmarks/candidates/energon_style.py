"""A loader with Energon's interface: energon_dali, or megatron-energon in its environment; the same lines for both.

Options: library ("energon_dali" or "megatron.energon"), decoder ("sample" or "dali"), workers, feed, shuffle_window,
leaves (datasets that the files are divided into, and blended).
Pictures of size 224 come from operations declared on energon_dali's decoders, or from torchvision for megatron-energon.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.candidates.leaves import dataset_path
from benchmarks.candidates.stream import CROP_PIXELS, MEAN, STD, Delivered, measure_stream
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_transforms


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches: lists of uint8 tensors, or stacked float tensors."""
    loader = open_loader(task)
    while True:
        for batch in loader:
            yield Delivered(batch["image"], batch["__key__"] if with_keys else None)


def open_loader(task: Task) -> Any:
    """Returns the savable loader over the training part."""
    # Some loaders always pin, and torch says where there is no accelerator that there is nothing to pin for.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    library = importlib.import_module(task.options["library"])
    workers = int(task.options.get("workers", 2))
    order = {"parallel_shard_iters": 1} if task.options.get("feed") == "native" else {}  # an order made of runs
    dataset = library.get_train_dataset(
        dataset_path(task),
        worker_config=library.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=task.batch_size,
        shuffle_buffer_size=task.options.get("shuffle_window"),
        max_samples_per_sequence=None,
        task_encoder=task_encoder(library, task),
        **order,
    )
    return library.get_savable_loader(dataset)


def task_encoder(library: Any, task: Task) -> Any:
    """Returns a task encoder that batches pictures: a list of them as they are, or a stack of 224 x 224 pixels."""
    fused = task.output == "float224"
    transform = torchvision_transform() if fused and task.options["library"] != "energon_dali" else None

    class Encoder(library.DefaultTaskEncoder):  # type: ignore[misc]
        decoder = make_decoder(library, task)

        def encode_sample(self, sample: Any) -> Any:
            return sample if transform is None else dataclasses.replace(sample, image=transform(sample.image))

        def batch(self, samples: list[Any]) -> dict[str, Any]:
            # A dictionary crosses processes everywhere; a class made inside a function does not.
            images = [sample.image for sample in samples]
            keys = [sample.__key__ for sample in samples]
            return {"__key__": keys, "image": library.batch_stack(images) if fused else images}

        def encode_batch(self, batch: Any) -> Any:
            return batch

    return Encoder()


def make_decoder(library: Any, task: Task) -> Any:
    """Returns the decoder that the options name, with the operations that the output needs."""
    if task.options["library"] != "energon_dali":
        return library.SampleDecoder(image_decode="torchrgb8")
    options: dict[str, Any] = {"image_decode": "torchrgb8"}
    if task.output == "float224":
        options = {
            "image_decode": "torchrgb",
            "operations": (
                library.RandomResizedCrop(CROP_PIXELS), library.HorizontalFlip(), library.Normalize(MEAN, STD),
            ),
        }  # fmt: skip
    elif task.layout == "HWC":
        options["image_layout"] = "HWC"
    if task.options.get("decoder") == "dali":
        return library.DaliDecoder(image_decode_device="cpu", feed=task.options.get("feed", "block"), **options)
    return library.SampleDecoder(**options)


def torchvision_transform() -> Any:
    """Returns torchvision's transforms, on the uint8 tensors that they are fastest on."""
    transforms = import_torchvision_transforms()
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(CROP_PIXELS, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(MEAN, STD),
        ]
    )
