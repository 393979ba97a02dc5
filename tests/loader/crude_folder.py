"""A polylithic dataset: lines that name files, in tar shards and in a folder; and a crude dataset of shards."""

from __future__ import annotations

import json
from pathlib import Path

from energon_dali.shards import prepare_dataset, prepare_jsonl
from tests.loader.dataset_folder import picture, write_shards

CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
MISSING = 5
"""The line that names a missing file."""
BROKEN = 9
"""The line that is not JSON."""


def polylithic(folder: Path, count: int = 16, *, damaged: bool = False) -> Path:
    """Writes everything and a metadataset over it; returns the metadataset.

    Args:
        folder: Where.
        count: Samples of each of the two datasets.
        damaged: Whether a line names a missing file and another is not JSON.
    """
    images = write_shards(folder / "images", {f"a/i{n}": {"jpg": picture(n, size=(40, 30))} for n in range(count)}, 2)
    prepare_dataset(str(images), split_ratio={"train": 1.0})
    (folder / "files").mkdir()
    for number in range(count):
        (folder / "files" / f"f{number}.png").write_bytes(picture(100 + number, "png", (24, 20)))
    lines = [json.dumps({"n": n, "image": f"a/i{n}.jpg", "file": f"f{n}.png"}) for n in range(count)]
    if damaged:
        lines[MISSING] = lines[MISSING].replace("a/i", "b/i")
        lines[BROKEN] = "{broken"
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    prepare_jsonl(str(folder / "lines.jsonl"))
    samples = {
        f"k{n}": {"jpg": picture(200 + n, size=(36, 28)), "json": json.dumps({"n": n, "image": f"a/i{n}.jpg"}).encode()}
        for n in range(count)
    }
    prepare_dataset(str(write_shards(folder / "shards", samples, 2)), split_patterns=[("train", ".*"), ("val", ".*")])
    (folder / "shards" / ".nv-meta" / "dataset.yaml").write_text(json.dumps(CRUDE))
    entry = {
        "lines": {
            "path": "lines.jsonl",
            "subflavors": {"kind": "lines"},
            "aux": {"images": "images", "files": "filesystem://files"},
        },
        "shards": {
            "path": "shards",
            "split_part": "val",
            "subflavors": {"kind": "shards"},
            "aux": {"images": {"path": "images"}},
        },
    }
    splits = {
        "train": {"blend": [{"weight": 1.0, **entry["lines"]}, {"weight": 1.0, **entry["shards"]}]},
        "val": {"concat": [entry["lines"], entry["shards"]]},
        "lines": entry["lines"],
        "shards": entry["shards"],
    }
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    (folder / "mix.yaml").write_text(json.dumps(document))
    return folder / "mix.yaml"
