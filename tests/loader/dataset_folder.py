"""Makes small prepared datasets of real images for tests."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

from energon_dali.shards import prepare_dataset
from tests.photographs import full_photograph

FIELD_MAP = {"image": "jpg,png,webp", "caption": "txt"}


def picture(number: int, kind: str = "jpg", size: tuple[int, int] = (64, 48)) -> bytes:
    """Returns an encoded crop of a photograph, a different one for each number."""
    photograph = full_photograph(("china", "flower")[number % 2])
    left, top = (37 * number) % (photograph.width - 130), (23 * number) % (photograph.height - 110)
    crop = photograph.crop((left, top, left + 120, top + 100)).resize(size)
    file = io.BytesIO()
    crop.save(file, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind], quality=90)
    return file.getvalue()


def captioning_sample(number: int) -> dict[str, bytes]:
    """Returns the parts of sample `number`: an image, its caption and some JSON."""
    kind = ("jpg", "jpg", "png", "webp")[number % 4]
    return {
        kind: picture(number, kind, (64 + number % 3, 48)),
        "txt": f"picture number {number}".encode(),
        "json": json.dumps({"number": number, "tags": ["a", "b"]}).encode(),
    }


def write_shards(folder: Path, samples: Mapping[str, Mapping[str, bytes]], shards: int = 3) -> Path:
    """Writes samples (key to parts) to `shards` tar files of nearly equal length, in order."""
    import webdataset  # here, as above

    folder.mkdir(parents=True, exist_ok=True)
    keys = list(samples)
    for shard in range(shards):
        with webdataset.TarWriter(str(folder / f"shard_{shard:03d}.tar")) as tar:
            for key in keys[len(keys) * shard // shards : len(keys) * (shard + 1) // shards]:
                tar.write({"__key__": key, **samples[key]})
    return folder


def captioning_dataset(folder: Path, count: int = 48, shards: int = 3) -> Path:
    """Writes and prepares a captioning dataset of `count` samples; train and val have all of it."""
    write_shards(folder, {f"k{number:04d}": captioning_sample(number) for number in range(count)}, shards)
    return prepare(folder)


def prepare(folder: Path, field_map: Mapping[str, str] | None = None, sample_type: str = "CaptioningSample") -> Path:
    """Prepares the shards of a folder, with all of them in both train and val."""
    prepare_dataset(str(folder), split_patterns=[("train", ".*"), ("val", ".*")])
    config = {
        "sample_type": {"__module__": "megatron.energon", "__class__": sample_type},
        "field_map": dict(field_map or FIELD_MAP),
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    return folder
