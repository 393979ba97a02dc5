"""torchvision's fast path: `decode_image` on bytes, then the transforms (v2) on uint8 tensors.

Loaders without a decoder of their own decode so, each in its workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.candidates.energon_style import torchvision_transform
from benchmarks.candidates.task import Task
from benchmarks.candidates.torchvision_import import import_torchvision_io


def make_decode(task: Task) -> Callable[[bytes], torch.Tensor]:
    """Returns the function from an encoded image to the output of a task: uint8[3, H, W] or float32[3, 224, 224].

    Raises:
        LeftOutError: torchvision's decoders cannot be loaded.
    """
    io = import_torchvision_io()
    transform: Any = torchvision_transform(task) if task.output == "float224" else None
    warnings.filterwarnings("ignore", message="The given buffer is not writable")

    def decode(data: bytes) -> torch.Tensor:
        image: torch.Tensor = io.decode_image(torch.frombuffer(data, dtype=torch.uint8), mode="RGB")
        return image if transform is None else transform(image)

    return decode


class DecodeRow:
    """Decodes the part of a sample in a worker, which makes its own function at the first sample.

    Args:
        task: Says the output.
        as_array: Whether images are NumPy arrays, for loaders that send these alone through shared memory.
    """

    def __init__(self, task: Task, *, as_array: bool = False) -> None:
        self._task = task
        self._as_array = as_array
        self._decode: Callable[[bytes], torch.Tensor] | None = None

    def __call__(self, row: tuple[str, bytes]) -> tuple[str, Any]:
        """Returns (key, image) of (key, encoded image)."""
        if self._decode is None:
            self._decode = make_decode(self._task)
        image = self._decode(row[1])
        return row[0], image.numpy() if self._as_array else image


class CollateRows:
    """Makes a batch of rows in a worker: a list of keys, and images in a list or stacked.

    Args:
        output: Of the workload.
    """

    def __init__(self, output: str) -> None:
        self._output = output

    def __call__(self, rows: Sequence[tuple[str, Any]]) -> tuple[list[str], Any]:
        """Returns (keys, images)."""
        keys, images = zip(*rows, strict=True)
        if self._output == "uint8":
            return list(keys), list(images)
        stacked = torch.stack(images) if isinstance(images[0], torch.Tensor) else np.stack(images)
        return list(keys), stacked


def as_tensors(images: Any) -> Any:
    """Returns images that may be NumPy arrays as tensors that share their memory."""
    if isinstance(images, list):
        return [as_tensors(image) for image in images]
    return torch.from_numpy(images) if isinstance(images, np.ndarray) else images
