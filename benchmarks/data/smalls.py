"""Datasets of small samples, where nothing hides what each of them costs: JSON and text of 200 bytes, PNGs of 32 x 32.

What a sample holds follows from its key, so that any loader's output can be checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.data.photographs import cut

PARTS = {"small-json": "json", "small-text": "txt", "small-png": "png"}
"""Name of the only part of a sample, by the style of its recipe."""

SAMPLE_BYTES = 200
SIDE_PIXELS = 32
PICTURES = 1000
"""Different images, which are repeated under other keys."""

FACTS = "facts.json"
"""File next to shards of images: the sum of the RGB values of each different image."""

_FIELDS = {
    "json": ("TextSample", "text: json"),
    "txt": ("TextSample", "text: txt"),
    "png": ("ImageSample", "image: png"),
}


def key_of(number: int) -> str:
    """Returns the key of a sample."""
    return f"{number:07d}"


def record_of(number: int) -> dict[str, Any]:
    """Returns the value of a JSON sample, whose text has `SAMPLE_BYTES` bytes."""
    record = {"id": number, "label": number % 10, "score": number % 997 / 1000, "tags": ["a", "b"], "text": ""}
    return {**record, "text": _words(number, SAMPLE_BYTES - len(json.dumps(record)))}


def text_of(number: int) -> str:
    """Returns the content of a text sample."""
    return f"{number} {_words(number, SAMPLE_BYTES)}"[:SAMPLE_BYTES]


def _words(number: int, length: int) -> str:
    word = hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()
    return " ".join([word] * (length // len(word) + 1))[:length]


def write_smalls(folder: Path, *, style: str, samples: int, shards: int, seed: int) -> None:
    """Writes a dataset, prepared.

    Args:
        folder: Where the shards are written.
        style: "small-json", "small-text" or "small-png".
        samples: Number of samples.
        shards: Number of shards; samples are distributed over them in order.
        seed: Of the images.
    """
    from energon_dali.shards import prepare_dataset

    part = PARTS[style]
    pictures = _pictures(folder, min(PICTURES, samples), seed) if part == "png" else []
    for shard, numbers in enumerate(np.array_split(np.arange(samples), shards)):
        with tarfile.open(folder / f"shard-{shard:04d}.tar", "w") as tar:
            for number in numbers.tolist():
                content = pictures[number % len(pictures)] if pictures else _encoded(part, number)
                entry = tarfile.TarInfo(f"{key_of(number)}.{part}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    kind, field = _FIELDS[part]
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        f"sample_type:\n  __module__: megatron.energon\n  __class__: {kind}\nfield_map:\n  {field}\n"
    )


def _encoded(part: str, number: int) -> bytes:
    return (json.dumps(record_of(number)) if part == "json" else text_of(number)).encode()


def _pictures(folder: Path, count: int, seed: int) -> list[bytes]:
    encoded, sums = [], []
    for index in range(count):
        rng = np.random.Generator(np.random.Philox(key=[seed, index]))
        image = cut(rng, width=SIDE_PIXELS, height=SIDE_PIXELS).image.convert("RGB")
        sums.append(int(np.asarray(image).sum(dtype=np.int64)))
        encoded.append(_png(image))
    (folder / FACTS).write_text(json.dumps(sums))
    return encoded


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
