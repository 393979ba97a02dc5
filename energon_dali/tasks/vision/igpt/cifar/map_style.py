"""The images of a map-style dataset class with the arguments of torchvision's CIFAR10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.tasks.vision.igpt.cifar.archive import SIDE_PX, CifarArchive, LabelledImages

DatasetClass = Callable[..., Any]
"""Called as `dataset_cls(data_dir, train=True, download=True)`; its items are (image, class)."""


def name_of(dataset_cls: DatasetClass) -> str:
    """Returns the beginning of the folder's name for the shards of a class."""
    return f"from-{getattr(dataset_cls, '__name__', type(dataset_cls).__name__)}"


def read_dataset(dataset_cls: DatasetClass, data_dir: Path, *, download: bool) -> CifarArchive:
    """Returns all images of a class, of training and of the test.

    Args:
        dataset_cls: The class.
        data_dir: Its first argument.
        download: Whether it may fetch its data.

    Raises:
        ConfigError: An item is not an image of 32 x 32 pixels with the number of a class.
    """
    parts = [dataset_cls(str(data_dir), train=train, download=download) for train in (True, False)]
    train, test = (_images(part, name_of(dataset_cls).removeprefix("from-")) for part in parts)
    count = 1 + int(max(train.labels.max(initial=0), test.labels.max(initial=0)))
    names = tuple(map(str, getattr(parts[0], "classes", ())))
    return CifarArchive(names if len(names) >= count else tuple(map(str, range(count))), train, test)


def _images(dataset: Any, name: str) -> LabelledImages:
    pixels = np.empty((len(dataset), SIDE_PX, SIDE_PX, 3), np.uint8)
    labels = np.empty(len(dataset), np.int64)
    for index in range(len(dataset)):
        image, label = dataset[index]
        values = np.asarray(image)
        if values.shape != pixels.shape[1:] or values.dtype != np.uint8:
            raise ConfigError(
                f"Item {index} of {name} is an image of {values.shape = }, {values.dtype = }, where uint8[{SIDE_PX}, "
                f"{SIDE_PX}, 3] or a PIL image of that size in RGB is needed. For other images, derive a data module "
                "from TransformerDataModule and set dataset_train, dataset_val and dataset_test in setup()."
            )
        if int(label) < 0:
            raise ConfigError(f"Item {index} of {name} has the class {label}: classes are numbers from 0 on.")
        pixels[index], labels[index] = values, int(label)
    return LabelledImages(pixels, labels)
