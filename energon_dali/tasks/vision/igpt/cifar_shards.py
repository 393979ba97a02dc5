"""Makes a prepared dataset of an archive: PNG files and classes in tar shards, split at random, once.

So are the images of a map-style dataset class with the arguments of torchvision's CIFAR10.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.shards import StoragePath, prepare_dataset
from energon_dali.shards.meta.dataset_config import sample_config, write_dataset_config
from energon_dali.shards.storage.atomic_file import write_atomically
from energon_dali.tasks.vision.igpt.cifar_archive import SIDE_PX, CifarArchive, LabelledImages, md5_of, read_archive

if TYPE_CHECKING:
    from torch.utils.data import Dataset


ARCHIVED = "cifar10"
"""Beginning of the folder's name where the images are those of an archive."""
FACTS = "facts.json"
_SAMPLES_PER_SHARD = 500
_MD5_DIGITS = 8


@dataclass(frozen=True, slots=True)
class SplitRecipe:
    """How the archive's training images are split.

    Raises:
        ConfigError: The share is not between 0 and 1.
    """

    val_fraction: float = 0.1
    """Share of the training images that become the part "val"; the archive's test images are the part "test"."""
    seed: int = 0
    """Of the random split."""

    def __post_init__(self) -> None:
        if not isinstance(self.val_fraction, int | float) or not 0 < self.val_fraction < 1:
            raise ConfigError(
                f"val_fraction={self.val_fraction} leaves nothing to train on or nothing to validate with. Give a "
                "share between 0 and 1, such as 0.1."
            )

    @property
    def name(self) -> str:
        """The recipe in a folder's name."""
        return f"val{self.val_fraction:g}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class PreparedCifar:
    """A dataset that was made of an archive."""

    path: Path
    """Folder with shards and `.nv-meta`."""
    classes: tuple[str, ...]
    """Names of the classes; labels are their numbers."""


def find_prepared(data_dir: Path, recipe: SplitRecipe, name: str = ARCHIVED) -> PreparedCifar | None:
    """Returns the dataset that was made with a recipe, None if there is none.

    Args:
        data_dir: Where it would be.
        recipe: How it was split.
        name: What it was made of, as in the name of its folder.

    Raises:
        ConfigError: There are several, of different contents.
        DatasetFormatError: Its facts cannot be understood.
    """
    found = sorted(data_dir.glob(f"{name}-{'?' * _MD5_DIGITS}-{recipe.name}"))
    if len(found) > 1 and name != ARCHIVED:
        raise ConfigError(
            f"{data_dir} holds {', '.join(path.name for path in found)}, made when {name.removeprefix('from-')} had "
            "other images. Remove all but one."
        )
    if len(found) > 1:
        raise ConfigError(
            f"{data_dir} holds datasets of different archives, {', '.join(path.name for path in found)}, and no "
            "archive. Put the archive there, or name it with archive=..., or remove all but one."
        )
    return _open(found[0]) if found else None


def prepare_cifar(archive: Path, data_dir: Path, recipe: SplitRecipe) -> PreparedCifar:
    """Returns the dataset of an archive, made now if it was not: the same files every time.

    It appears when it is whole, and several processes may make it at the same time: the first one's stays.

    Args:
        archive: In the format of cifar-10-python.tar.gz.
        data_dir: Gets a folder, named by archive and recipe.
        recipe: How to split.

    Raises:
        ConfigError: A part of the split would be empty.
        DatasetFormatError: The archive is damaged, or not of this format.
        StorageError: Something cannot be read or written.
    """
    return _prepare(ARCHIVED, md5_of(archive), lambda: read_archive(archive), data_dir, recipe)


def prepare_images(name: str, content: CifarArchive, data_dir: Path, recipe: SplitRecipe) -> PreparedCifar:
    """Returns the dataset of images in memory, made now if it was not, as `prepare_cifar` does.

    Args:
        name: Name of the folder's beginning.
        content: The images.
        data_dir: Gets a folder, named by name, content and recipe.
        recipe: How to split.

    Raises:
        ConfigError: A part of the split would be empty.
        StorageError: Something cannot be written.
    """
    digest = hashlib.md5(repr(content.classes).encode(), usedforsecurity=False)
    for part in (content.train, content.test):
        digest.update(part.pixels.tobytes())
        digest.update(part.labels.tobytes())
    return _prepare(name, digest.hexdigest(), lambda: content, data_dir, recipe)


def _prepare(
    name: str, md5: str, read: Callable[[], CifarArchive], data_dir: Path, recipe: SplitRecipe
) -> PreparedCifar:
    path = data_dir / f"{name}-{md5[:_MD5_DIGITS]}-{recipe.name}"
    if path.is_dir():
        return _open(path)
    building = data_dir / f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        _build(name, md5, read(), building, recipe)
        try:
            building.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was first
                raise
    except OSError as error:
        raise StorageError(f"The shards of {name} cannot be written below {data_dir}: {error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _open(path)


def _open(path: Path) -> PreparedCifar:
    try:
        facts = json.loads((path / FACTS).read_text())
        return PreparedCifar(path, tuple(facts["classes"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetFormatError(
            f"{path / FACTS} cannot be understood ({error}). Remove {path}: it is made again from the archive."
        ) from error


def _build(name: str, md5: str, content: CifarArchive, folder: Path, recipe: SplitRecipe) -> None:
    import torch
    from torch.utils.data import random_split

    count = len(content.train.labels)
    num_val = round(count * recipe.val_fraction)
    if not 0 < num_val < count:
        raise ConfigError(
            f"val_fraction={recipe.val_fraction} of {count} images is {num_val}: training and validation need at "
            "least one image each."
        )
    generator = torch.Generator().manual_seed(recipe.seed)
    places = cast("Dataset[int]", range(count))
    train, val = random_split(places, [count - num_val, num_val], generator)
    folder.mkdir(parents=True)
    _write_part(folder, "train", "train", content.train, train.indices)
    _write_part(folder, "val", "train", content.train, val.indices)
    _write_part(folder, "test", "test", content.test, range(len(content.test.labels)))
    patterns = [(part, f"{part}-.*") for part in ("train", "val", "test")]
    # Of the archive and the recipe, as the samples are: a run continues where they were made again, on another machine.
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}-{md5}-{recipe.name}"))
    prepare_dataset(str(folder), split_patterns=patterns, identity=identity)
    field_map = {"image": "png", "label": "cls"}
    write_dataset_config(StoragePath.of(str(folder)), sample_config("ImageClassificationSample", field_map))
    facts = {"archive_md5": md5, "classes": content.classes, "train": count - num_val, "val": num_val}
    document = {**facts, "test": len(content.test.labels), "split_seed": recipe.seed}
    write_atomically(folder / FACTS, json.dumps(document).encode())


def _write_part(folder: Path, part: str, prefix: str, images: LabelledImages, indices: Sequence[int]) -> None:
    """Writes the shards of a part; a key is the position of the image in the archive."""
    from webdataset import TarWriter

    for shard, first in enumerate(range(0, len(indices), _SAMPLES_PER_SHARD)):
        with (folder / f"{part}-{shard:04d}.tar").open("wb") as file, TarWriter(file, mtime=0) as tar:
            for index in indices[first : first + _SAMPLES_PER_SHARD]:
                buffer = io.BytesIO()
                Image.fromarray(images.pixels[index]).save(buffer, "PNG")
                label = str(images.labels[index]).encode()
                tar.write({"__key__": f"{prefix}-{index:06d}", "png": buffer.getvalue(), "cls": label})


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
