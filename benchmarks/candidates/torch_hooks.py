"""energon_dali with hooks of a few torch calls per sample, in the trainer's process or in a decode process.

DALI decodes and crops to 224 pixels, uint8, HWC; the hook permutes, converts and normalises each sample. Every one of
its torch calls gives the interpreter lock away.
Options: decode_process, workers, trainer (see `spinner`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

import energon_dali
from benchmarks.candidates.outputs import crop_ranges
from benchmarks.candidates.stream import CROP_PIXELS, MEAN, STD, Delivered, measure_stream
from benchmarks.candidates.task import Task


class Encoder(energon_dali.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Normalises images in torch.

    Args:
        task: Says where crops may be.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        area, ratio = crop_ranges(task)
        self.decoder = energon_dali.DaliDecoder(
            image_decode="torchrgb8",
            image_decode_device="cpu",
            image_layout="HWC",
            operations=(
                energon_dali.RandomResizedCrop(CROP_PIXELS, scale=area, ratio=ratio),
                energon_dali.HorizontalFlip(),
            ),
        )
        self.mean = 255 * torch.tensor(MEAN).view(3, 1, 1)
        self.std = 255 * torch.tensor(STD).view(3, 1, 1)

    def encode_sample(self, sample: Any) -> Any:
        image = sample.image.permute(2, 0, 1).float()
        image = ((image - self.mean) / self.std).clone()
        return dataclasses.replace(sample, image=image)

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        images = energon_dali.batch_stack([sample.image for sample in samples])
        return {"__key__": [sample.__key__ for sample in samples], "image": images}

    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields stacked float batches."""
    config = energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=int(task.options.get("workers", 1)))
    dataset = energon_dali.get_train_dataset(
        task.dataset, worker_config=config, batch_size=task.batch_size, task_encoder=Encoder(task)
    )
    loader = energon_dali.get_savable_loader(dataset, decode_process=bool(task.options.get("decode_process", False)))
    for batch in loader:
        yield Delivered(batch["image"], batch["__key__"] if with_keys else None)
