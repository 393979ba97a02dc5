"""What a dataset of crops consists of, as data, and how it is written: shards, and the facts to check them by."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image
from tqdm import tqdm

from benchmarks.data.photographs import Crop, cut, encode, encode_to_size

FACTS = "facts.json"
"""File beside the shards: {key: [height, width, sum of all RGB values]}; of a video [360, 640, frames]."""

RECIPE = "recipe.json"
"""File beside the shards, written last: a folder without it is not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A dataset of crops. The same recipe gives the same pixels on every machine with the same Pillow."""

    name: str
    """Name of the folder."""
    samples: int
    """Number of samples."""
    shards: int = 4
    """Number of shards; samples are dealt to them in order."""
    seed: int = 0
    """Seed of every crop, with the number of the sample."""
    style: str = "mixed"
    """"mixed": JPEG, PNG and WebP of 20 to 300 KB. "jpeg": JPEGs of about `target_bytes` and 400 x 500. "video": H.264
    in mp4, 640 x 360 pixels, 30 frames per second."""
    target_bytes: int = 104_000
    """Size of a JPEG of style "jpeg", in bytes."""
    seconds: int = 10
    """Length of a video of style "video", in seconds."""


@dataclass(frozen=True, slots=True)
class Made:
    """One finished sample."""

    suffix: str
    """Part name of the picture."""
    data: bytes
    """The encoded picture."""
    crop_facts: dict[str, object]
    """What goes into the .json part."""
    caption: str
    """What goes into the .txt part."""
    fact: tuple[int, int, int]
    """Height, width, sum of the decoded RGB values; of a video 360, 640 and the number of its frames."""


def make_dataset(
    recipe: Recipe, folder: Path, *, progress: bool = True, processes: int | None = None
) -> Path:
    """Writes the shards of a recipe, unless they are there already, and returns their folder.

    Args:
        recipe: What to make.
        folder: Parent folder; the dataset gets the recipe's name inside.
        progress: Shows a progress bar.
        processes: How many processes encode; None is one per core.

    Raises:
        OSError: The folder cannot be written.
    """
    root = folder / recipe.name
    if (root / RECIPE).exists() and json.loads((root / RECIPE).read_text()) == asdict(recipe):
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    facts: dict[str, tuple[int, int, int]] = {}
    made = iter(
        tqdm(_made(recipe, processes), total=recipe.samples, desc=f"making {recipe.name}", disable=not progress)
    )
    per_shard = -(-recipe.samples // recipe.shards)
    for shard in range(recipe.shards):
        first = shard * per_shard
        writer = webdataset.TarWriter(str(root / f"shard-{shard:03d}.tar"), mtime=0)
        for index, sample in zip(range(first, min(first + per_shard, recipe.samples)), made, strict=False):
            key = f"{index:06d}"
            writer.write({"__key__": key, sample.suffix: sample.data, "txt": sample.caption, "json": sample.crop_facts})
            facts[key] = sample.fact
        writer.close()
    (root / FACTS).write_text(json.dumps(facts))
    (root / RECIPE).write_text(json.dumps(asdict(recipe)))
    return root


def _made(recipe: Recipe, processes: int | None) -> Iterator[Made]:
    workers = processes or os.cpu_count() or 1
    make: Callable[[Recipe, int], Made] = _make_one
    if workers == 1:
        yield from (make(recipe, index) for index in range(recipe.samples))
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        at_once = 1 if recipe.style == "video" else 16
        yield from pool.map(make, [recipe] * recipe.samples, range(recipe.samples), chunksize=at_once)


def _make_one(recipe: Recipe, index: int) -> Made:
    rng = np.random.Generator(np.random.Philox(key=[recipe.seed, index]))
    if recipe.style == "video":
        return _video(recipe, rng)
    suffix, crop, data = _jpeg(recipe, rng) if recipe.style == "jpeg" else _mixed(rng)
    pixels = _decoded(data)
    facts = {"photograph": crop.photograph, "box": list(crop.box), "mirrored": crop.mirrored,
             "width": crop.image.width, "height": crop.image.height}  # fmt: skip
    height, width = pixels.shape[:2]
    return Made(suffix, data, facts, crop.caption, (height, width, int(pixels.sum(dtype=np.int64))))


def _video(recipe: Recipe, rng: np.random.Generator) -> Made:
    from benchmarks.data.videos import film

    frames = recipe.seconds * 30
    data, caption = film(rng, frames=frames)
    return Made("mp4", data, {"frames": frames, "fps": 30}, caption, (360, 640, frames))


def _jpeg(recipe: Recipe, rng: np.random.Generator) -> tuple[str, Crop, bytes]:
    width, height = int(500 * rng.uniform(0.85, 1.15)), int(400 * rng.uniform(0.85, 1.15))
    crop = cut(rng, width=width, height=height)
    return "jpg", crop, encode_to_size(crop.image, recipe.target_bytes)


def _mixed(rng: np.random.Generator) -> tuple[str, Crop, bytes]:
    suffix = str(rng.choice(["jpg", "png", "webp"], p=[0.7, 0.15, 0.15]))
    quality = int(rng.integers(80, 97))
    long_side = int(rng.integers(256, 360) if suffix == "png" else rng.integers(400, 900))
    aspect = float(np.exp(rng.uniform(np.log(0.6), np.log(1.7))))
    while True:
        width = long_side if aspect >= 1 else int(long_side * aspect)
        height = int(long_side / aspect) if aspect >= 1 else long_side
        crop = cut(rng, width=width, height=height)
        data = encode(crop.image, suffix, quality)
        if 20_000 <= len(data) <= 300_000:
            return suffix, crop, data
        long_side = int(long_side * (1.3 if len(data) < 20_000 else 0.8))


def _decoded(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    import io

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))
