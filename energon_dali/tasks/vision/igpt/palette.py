"""The palette: the colours that represent a training set, found by k-means, the same bit for bit on every machine.

Everything is counted in whole numbers (colours in eighths of a level, as `kernels.color_quantize` has them), so that
neither the number of threads nor the order of a sum is of any matter.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.kernels.color_quantize import UNITS_PER_LEVEL, Palette, color_quantize
from energon_dali.plan.rng import mix, mix_arrays
from energon_dali.shards import ShardReader, WebdatasetFolder
from energon_dali.shards.storage.atomic_file import write_atomically

_MAX_PICTURES = 2048
_PIXELS_PER_PICTURE = 16
_MAX_ROUNDS = 50
_FIRST_COLORS, _PICTURES, _PIXELS = 1, 2, 3
"""What a random number is for: the first part of its key."""


def stored_palette(dataset: str | os.PathLike[str], colors: int, seed: int = 0) -> Palette:
    """Returns the palette of a prepared dataset; it is found once and stored next to the shards.

    Several processes may do so at the same time: all find the same, and a file appears when it is whole.

    Args:
        dataset: Folder of a prepared dataset whose samples have a part "png".
        colors: How many.
        seed: Of the images, pixels and first colours that are drawn.

    Raises:
        ConfigError: The images have fewer colours than that, or there is no such number of colours.
        DatasetFormatError: The stored file cannot be understood, or the dataset is not prepared.
        DatasetError: A shard cannot be read.
        StorageError: It cannot be written.
    """
    path = Path(dataset) / f"palette-{colors}-seed{seed}.json"
    if path.exists():
        return _read(path)
    palette = learn_palette(training_pixels(dataset, seed), colors, seed)
    write_atomically(path, (json.dumps({"unit": "an eighth of a level", "colors": palette.units}) + "\n").encode())
    return palette


def _read(path: Path) -> Palette:
    try:
        return Palette(tuple((int(r), int(g), int(b)) for r, g, b in json.loads(path.read_text())["colors"]))
    except (ValueError, TypeError, KeyError) as error:
        raise DatasetFormatError(f"{path} holds no palette ({error}). Remove it: it is made again.") from error


def training_pixels(dataset: str | os.PathLike[str], seed: int = 0) -> NDArray[np.uint8]:
    """Returns uint8[N, 3]: pixels drawn from the training images, 16 from each of at most 2,048 images.

    Args:
        dataset: Folder of a prepared dataset whose samples have a part "png".
        seed: Of what is drawn.

    Raises:
        DatasetError: A shard cannot be read.
    """
    folder = WebdatasetFolder(str(dataset))
    ranges = folder.split_ranges("train")
    counts = ranges.stop - ranges.start
    shards = np.repeat(ranges.shard, counts)
    starts = np.repeat(ranges.start - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    indices = starts + np.arange(counts.sum())
    order = np.argsort(mix_arrays(_PICTURES, seed, np.arange(len(shards))), kind="stable")[:_MAX_PICTURES]
    reader = ShardReader(folder, lambda name: name == "png")
    found = []
    for number, sample in zip(order, reader.read(shards[order].tolist(), indices[order].tolist()), strict=True):
        if isinstance(sample, Exception):
            raise sample
        with Image.open(io.BytesIO(sample.parts["png"])) as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        places = mix_arrays(_PIXELS, seed, int(number), np.arange(_PIXELS_PER_PICTURE)) % np.uint64(len(pixels))
        found.append(pixels[places])
    return np.concatenate(found)


def learn_palette(pixels: NDArray[np.uint8], colors: int, seed: int = 0) -> Palette:
    """Returns the colours that k-means finds (Lloyd's rounds, begun by k-means++), sorted from dark to bright.

    Args:
        pixels: uint8[N, 3].
        colors: How many, 2 to 32768.
        seed: Of the first colours.

    Raises:
        ConfigError: There are fewer different pixels than that, or there is no such number of colours.
    """
    distinct, weights = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    if not 2 <= colors <= min(len(distinct), 32768):
        raise ConfigError(
            f"A palette of {colors} colours was asked for, of images with {len(distinct)} colours. "
            f"Give num_colors from 2 to {min(len(distinct), 32768)}."
        )
    units = _first_colors(distinct.astype(np.int64), weights, colors, seed) * UNITS_PER_LEVEL
    for _ in range(_MAX_ROUNDS):
        moved = _centres(distinct, weights, units)
        if np.array_equal(moved, units):
            break
        units = moved
    luma = units @ np.array([299, 587, 114])  # Rec. 601
    ordered = units[np.lexsort((units[:, 2], units[:, 1], units[:, 0], luma))]
    return Palette(tuple((int(red), int(green), int(blue)) for red, green, blue in ordered.tolist()))


def _first_colors(distinct: NDArray[np.int64], weights: NDArray[np.int64], colors: int, seed: int) -> NDArray[np.int64]:
    """Returns int64[colors, 3]: each drawn by its squared distance to those before it (Arthur, Vassilvitskii 2007)."""
    nearest = np.ones(len(distinct), np.int64)
    chosen = []
    for number in range(colors):
        sums = np.cumsum(weights * nearest)
        draw = mix(_FIRST_COLORS, seed, number) % int(sums[-1])
        color = distinct[int(np.searchsorted(sums, draw, side="right"))]
        distances = ((distinct - color) ** 2).sum(axis=1)
        nearest = distances if number == 0 else np.minimum(nearest, distances)
        chosen.append(color)
    return np.stack(chosen)


def _centres(distinct: NDArray[np.uint8], weights: NDArray[np.int64], units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns int64[K, 3]: the mean of the pixels that are nearest to each colour; a colour without any stays."""
    import torch

    palette = Palette(tuple((int(red), int(green), int(blue)) for red, green, blue in units.tolist()))
    owners = color_quantize(torch.from_numpy(np.ascontiguousarray(distinct)), palette).numpy()
    counts = np.bincount(owners, weights, len(units))
    moved: NDArray[np.int64] = units.copy()
    for channel in range(3):
        # Sums of whole numbers below 2**53 are exact in float64, in any order.
        sums = np.bincount(owners, weights * distinct[:, channel], len(units)) * UNITS_PER_LEVEL
        means = np.rint(sums / np.maximum(counts, 1)).astype(np.int64)
        moved[:, channel] = np.where(counts > 0, means, units[:, channel])
    return moved
