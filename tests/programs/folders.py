"""The datasets of random programs: texts, pictures, lines with a store, a join, interleaved samples and videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from energon_dali import SkipSample, TextSample, basic_sample_keys, prepare_metadataset, stateless
from energon_dali.shards import prepare_jsonl
from tests.av.corpus import broken_files, video_file
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards
from tests.loader.interleaved_folder import interleaved_folder

TEXTS = {"a": (31, 4), "b": (17, 2), "c": (9, 1), "d": (1, 1)}
"""Samples and shards of each dataset of texts."""
PICTURES = {"p": (26, 3), "q": (11, 1)}


def write_folders(base: Path, *, in_process: bool = False) -> Path:
    """Writes all datasets, and returns the folder.

    Args:
        base: The folder.
        in_process: Leave out what `draw_program(in_process=True)` leaves out.
    """
    for name, (count, shards) in TEXTS.items():
        numbers = range(count) if count > 1 else [1]  # most hooks yield something for number 1
        samples = {f"k{number:04d}": {"txt": f"{name}{number}".encode()} for number in numbers}
        prepare(write_shards(base / name, samples, shards), {"text": "txt"}, "TextSample")
    for name, (count, shards) in PICTURES.items():
        samples = {f"k{number:04d}": captioning_sample(number) for number in range(count)}
        for number in range(5, count, 9):  # some images end in the middle
            part = next(part for part in samples[f"k{number:04d}"] if part in ("jpg", "png", "webp"))
            samples[f"k{number:04d}"][part] = samples[f"k{number:04d}"][part][:-300]
        prepare(write_shards(base / name, samples, shards))
    (base / "lines.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(21)))  # the store ends at 16
    prepare_jsonl(str(base / "lines.jsonl"))
    joined = {
        "join": [{"path": "a"}, {"path": "b", "nonmatch": "none"}],
        "joiner": {"__module__": __name__, "__function__": "join_texts"},
    }
    metadatasets = {
        "join": joined,
        "aux": {"path": "lines.jsonl", "aux": {"texts": "b"}},
        "blend": {"blend": [{"path": "a", "weight": 2}, {"path": "c", "weight": 1}]},
        "blend_epochized": {"blend_epochized": [{"path": "b", "repetitions": 0.7}, {"path": "c", "repetitions": 2}]},
    }
    for name, node in metadatasets.items():
        (base / f"{name}.yaml").write_text(json.dumps({"__class__": "MetadatasetV2", "splits": {"train": node}}))
    prepare_metadataset(base / "join.yaml")
    if in_process:
        return base
    interleaved_folder(base / "interleaved")
    videos = {
        f"k{n:04d}": {"mp4": broken_files()["mp4-half"] if n == 3 else video_file("h264-b-mp4")} for n in range(6)
    }
    folder = prepare(write_shards(base / "videos", videos, 2))
    (folder / ".nv-meta" / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return base


def join_texts(left: TextSample, right: TextSample | None) -> TextSample:
    """Joins two samples."""
    return TextSample.extend(left, text=f"{left.text} and {right and right.text}")


@stateless
def cook_line(sample: dict[str, Any], texts: Any) -> TextSample:
    """Makes a sample of a line; some lines name a file that the store lacks."""
    number = sample["json"]["n"]
    if number % 6 == 4:
        raise SkipSample
    keys = {**basic_sample_keys(sample), "__key__": f"k{number:04d}"}
    return TextSample(**keys, text=str(texts.get(f"k{number:04d}.txt", sample)))
