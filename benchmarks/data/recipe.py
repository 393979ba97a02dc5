"""Recipes of datasets of crops, as data, and how they are written: shards, and facts for checks."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image
from tqdm import tqdm

from benchmarks.data.smalls import PARTS, write_smalls
from benchmarks.data.styles import picture
from benchmarks.data.texts import write_texts

FACTS = "facts.json"
"""File next to the shards: {key: [height, width, sum of all RGB values]}; of a video [height, width, frames]."""

TEXT_BYTES = 200
"""Size of a sample of style "text" in bytes."""

FRAMES_PER_SECOND = 30
"""Frames per second of every video."""

RECIPE = "recipe.json"
"""File next to the shards, written last: a folder without it is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A dataset of crops. The same recipe gives the same pixels on every machine with the same Pillow."""

    name: str
    """Name of the folder."""
    samples: int
    """Number of samples."""
    shards: int = 4
    """Number of shards; samples are distributed over them in order."""
    seed: int = 0
    """Seed of the crops, combined with the number of the sample."""
    style: str = "mixed"
    """"mixed": JPEG, PNG and WebP of 20 to 300 KB. "jpeg": JPEGs of about `target_bytes` and `width` x `height`, each
    side up to 15 % more or less. "formats": JPEG (baseline, progressive), PNG, WebP, BMP and TIFF, sides likewise.
    "webp": 70 % JPEG and 30 % WebP, sides likewise. "photo": JPEGs with sensor noise, "camera": such of about
    `target_bytes`. "page": PNGs of text around an image. "video": 30 frames per second. "text": 200 bytes of text each,
    and nothing else. "index": likewise, with shards that are links to one (`scale.synthetic`). "texts": texts of random
    lengths alone, see data/texts.py. "small-json", "small-text", "small-png": see data/smalls.py."""
    target_bytes: int = 104_000
    """Size of a JPEG of style "jpeg" or "camera", in bytes."""
    seconds: int = 10
    """Length of a video of style "video", in seconds."""
    width: int = 0
    """Width in pixels; 0 is the default of the style: 500, or 640 for video."""
    height: int = 0
    """Height in pixels; 0 is the default of the style: 400, or 360 for video."""
    distinct: int = 0
    """Number of different files, which are repeated under other keys; 0 makes all files different."""
    codec: str = "h264"
    """Codec of a video: "h264" in mp4, or "vp9" in webm, which DALI decodes on the CPU as well."""
    mixed_sizes: bool = False
    """Whether videos take turns in four sizes: `size`, six rows fewer, half of both sides, and one and a half times."""
    sound: bool = False
    """Whether a video has sound: stereo AAC."""
    media_index: bool = False
    """Whether `energon-dali prepare-media` indexes the packets of its videos."""
    own_shards: int = 0
    """Shards that are written; the others are links to them, once they are prepared. 0 writes all."""
    rounds: int = 1
    """How often the content of a video is repeated; it is encoded once, which makes long files quickly."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        own = (640, 360) if self.style == "video" else (500, 400)
        return self.width or own[0], self.height or own[1]

    def size_of(self, index: int) -> tuple[int, int]:
        """Returns (width, height) of a video.

        Args:
            index: Number of the sample.
        """
        width, height = self.size
        sizes = ((width, height), (width, height - 6), (width // 2, height // 2), (3 * width // 2, 3 * height // 2))
        return sizes[index % 4] if self.mixed_sizes else (width, height)

    @property
    def frames(self) -> int:
        """Frames of a video."""
        return self.seconds * FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Made:
    """One finished sample."""

    suffix: str
    """Part name of the image."""
    data: bytes
    """The encoded image."""
    crop_facts: dict[str, object]
    """Content of the .json part."""
    caption: str
    """Content of the .txt part."""
    fact: tuple[int, int, int]
    """Height, width, sum of the decoded RGB values; for a video the number of frames instead of the sum."""


def make_dataset(recipe: Recipe, folder: Path, *, progress: bool = True, processes: int | None = None) -> Path:
    """Writes the shards of a recipe, unless they exist, and returns their folder.

    Args:
        recipe: What to make.
        folder: Parent folder; the dataset gets the recipe's name inside.
        progress: Shows a progress bar.
        processes: How many processes encode; None is one per core.

    Raises:
        OSError: The folder cannot be written.
    """
    root = folder / recipe.name
    if (root / RECIPE).exists() and Recipe(**json.loads((root / RECIPE).read_text())) == recipe:
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    if recipe.style in ("index", "texts", *PARTS):
        if recipe.style == "texts":
            write_texts(root, samples=recipe.samples, shards=recipe.shards, seed=recipe.seed)
        elif recipe.style in PARTS:
            write_smalls(root, style=recipe.style, samples=recipe.samples, shards=recipe.shards, seed=recipe.seed)
        else:
            from benchmarks.scale.synthetic import write_synthetic

            write_synthetic(root, recipe.samples, recipe.shards)
        (root / RECIPE).write_text(json.dumps(asdict(recipe)))
        return root
    facts: dict[str, tuple[int, int, int]] = {}
    made = _repeated(
        tqdm(_made(recipe, processes), total=_distinct(recipe), desc=f"making {recipe.name}", disable=not progress)
    )
    per_shard, digits = -(-recipe.samples // recipe.shards), max(3, len(str(recipe.shards - 1)))
    own_shards = recipe.own_shards or recipe.shards
    for shard in range(own_shards):
        first = shard * per_shard
        writer = webdataset.TarWriter(str(root / f"shard-{shard:0{digits}d}.tar"), mtime=0)
        for index, sample in zip(range(first, min(first + per_shard, recipe.samples)), made, strict=False):
            key = f"{index:06d}"
            more = {} if recipe.style == "text" else {"txt": sample.caption, "json": sample.crop_facts}
            writer.write({"__key__": key, sample.suffix: sample.data, **more})
            facts[key] = sample.fact
        writer.close()
    (root / FACTS).write_text(json.dumps(facts))
    (root / RECIPE).write_text(json.dumps(asdict(recipe)))
    return root


def _distinct(recipe: Recipe) -> int:
    written = recipe.samples * (recipe.own_shards or recipe.shards) // recipe.shards
    return min(recipe.distinct or recipe.samples, written)


def _repeated(made: Iterable[Made]) -> Iterator[Made]:
    kept: list[Made] = []
    for sample in made:
        kept.append(sample)
        yield sample
    yield from itertools.cycle(kept)


def _made(recipe: Recipe, processes: int | None) -> Iterator[Made]:
    count = _distinct(recipe)
    workers = min(processes or len(os.sched_getaffinity(0)), -(-count // _files_per_process(recipe)))
    if workers == 1:
        yield from (_make_one(recipe, index) for index in range(count))
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        at_once = min(16, -(-count // (4 * workers)))
        yield from pool.map(_make_one, [recipe] * count, range(count), chunksize=at_once)


def _files_per_process(recipe: Recipe) -> int:
    """Returns how many files justify another process, given the time that its start takes."""
    width, height = recipe.size
    if recipe.style == "text":
        return 10**9
    return 1 if recipe.style == "video" else max(1, 4_000_000 // (width * height))


def _make_one(recipe: Recipe, index: int) -> Made:
    rng = np.random.Generator(np.random.Philox(key=[recipe.seed, index]))
    if recipe.style == "video":
        return _video(recipe, rng, recipe.size_of(index))
    if recipe.style == "text":
        text = rng.bytes(TEXT_BYTES // 2).hex().encode()
        return Made("txt", text, {}, "", (0, 0, len(text)))
    suffix, crop, data = picture(recipe.style, rng, recipe.size, recipe.target_bytes)
    pixels = _decoded(data)
    facts = {
        "photograph": crop.photograph,
        "box": list(crop.box),
        "mirrored": crop.mirrored,
        "width": crop.image.width,
        "height": crop.image.height,
    }
    height, width = pixels.shape[:2]
    return Made(suffix, data, facts, crop.caption, (height, width, int(pixels.sum(dtype=np.int64))))


def _video(recipe: Recipe, rng: np.random.Generator, size: tuple[int, int]) -> Made:
    from benchmarks.data.videos import make_video, repeat_video

    (width, height), frames = size, recipe.frames
    kinds = {"h264": ("libx264", "mp4"), "vp9": ("libvpx-vp9", "webm")}
    codec, container = kinds[recipe.codec]
    fast = recipe.rounds > 1
    data, caption = make_video(
        rng,
        width=width,
        height=height,
        frames=frames // recipe.rounds,
        fps=FRAMES_PER_SECOND,
        codec=codec,
        container=container,
        fast=fast or recipe.codec == "vp9",
        sound=recipe.sound,
    )
    if fast:
        data = repeat_video(data, container, recipe.rounds, fps=FRAMES_PER_SECOND)
    return Made(container, data, {"frames": frames, "fps": FRAMES_PER_SECOND}, caption, (height, width, frames))


def _decoded(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    import io

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))
