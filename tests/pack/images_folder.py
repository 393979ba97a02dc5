"""Folders of small images that differ in every pixel, and what a packed dataset gives back."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from energon_dali import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_dali.cli.media_options import check_image
from energon_dali.pack import PackOptions, PackResult, pack_dataset


def pixels(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the pixels of image `number`, uint8[height, width, 3]."""
    return np.random.default_rng(number).integers(0, 256, (6 + number % 5, 8, 3), np.uint8)


def png(number: int) -> bytes:
    """Returns image `number` as a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def caption(number: int) -> str:
    """Returns the caption of image `number`, which is not ASCII."""
    return f"Bild {number} für dich"


def write_images(root: Path, count: int, *, captions: bool = True) -> Path:
    """Writes images into two folders of `root`, with captions next to them."""
    for number in range(count):
        file = root / ("b" if number % 2 else "a") / f"img.{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
        if captions:
            file.with_suffix(".txt").write_text(caption(number), encoding="utf-8")
    return root


def pack(source: Path, out: Path, **options: Any) -> PackResult:
    """Packs with the check of images, in this process."""
    run = {
        name: options.pop(name)
        for name in ("strict", "overwrite", "num_workers", "ray_address", "watcher")
        if name in options
    }
    return pack_dataset(source, out, PackOptions(**options), check_part=check_image, **{"num_workers": 1, **run})


class Crude(DefaultTaskEncoder):
    cookers = (Cooker(lambda sample: sample),)


def load(result: PackResult, part: str = "train", *, crude: bool = False) -> dict[str, Any]:
    """Returns all samples of a part of the split by key, loaded as a trainer does."""
    dataset = get_train_dataset(
        str(result.out),
        split_part=part,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=Crude() if crude else DefaultTaskEncoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    found: dict[str, Any] = {}
    for sample in get_loader(dataset):
        key = sample["__key__"] if crude else sample.__key__
        assert key not in found
        found[key] = sample
    return found


def same_pixels(image: Any, number: int) -> bool:
    """Returns whether a decoded image, float32[3, height, width] in [0, 1], is image `number`."""
    found = (image.numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8)
    return bool(np.array_equal(found, pixels(number)))


def digest(out: Path) -> str:
    """Returns a hash of the names and bytes of all shards, and of the identity of the dataset."""
    found = hashlib.sha256()
    for file in sorted(out.glob("*.tar")):
        found.update(file.name.encode() + file.read_bytes())
    found.update((out / ".nv-meta" / "index.uuid").read_bytes())
    return found.hexdigest()
