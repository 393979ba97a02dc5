"""Makes tests/data/energon_7_4_1_mix: run it with a Python that has megatron-energon 7.4.1 and webdataset.

    python tests/data/make_energon_mix.py

It writes small datasets, lets Energon prepare and join them, and notes what Energon makes of the metadatasets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import webdataset
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    stateless,
    traverse_metadataset,
)

FOLDER = Path(__file__).resolve().parent / "energon_7_4_1_mix"
ENERGON = "__module__: megatron.energon\n__class__: {}\n"
V2 = ENERGON.format("MetadatasetV2")

METADATASETS = {
    "first.yaml": """splits:
  train:
    datasets:
    - {path: images, weight: 3, subflavors: {kind: image, from: first}}
    - {path: ./crude, subflavor: old, subflavors: {kind: crude}}
    - {path: first_inner.yaml, weight: 2, split_part: all, subflavors: {from: first}}
  val:
    datasets:
    - {path: crude, split_part: train}
""",
    "first_inner.yaml": """splits:
  all:
    datasets:
    - {path: texts, split_part: train, subflavors: {from: inner, level: 2}, shuffle_over_epochs_multiplier: 3}
    - {path: captions, split_part: val, weight: 0.5}
""",
    "second.yaml": V2
    + """splits:
  train:
    blend:
    - path: images
      weight: 1.5
      subset: {range: [20%, 80%]}
      subflavors: {number: 010, yes: on, word: No, ratio: 1e-1, none: ~}
    - path: second_inner.yaml
      weight: 0.5
      subset: {range: [0%, 50%]}
      shuffle_over_epochs_multiplier: 2
      subflavors: {outer: true, who: outer}
    subset: {range: [0%, 100%]}
  val:
    path: captions
    subset: {range: [2, end]}
    subflavors: {plain: 1}
  test:
    path: first.yaml
    split_part: train
    subflavors: {from: test}
""",
    "second_inner.yaml": V2
    + """splits:
  train:
    blend:
    - {path: texts, weight: 1, subflavors: {who: inner}, subset: {range: [1, 7]}}
    - {path: crude, weight: 3, shuffle_over_epochs_multiplier: -1}
    - {path: captions, split_part: val, weight: 0, shuffle_over_epochs_multiplier: null}
""",
    "epochs.yaml": V2
    + """splits:
  train:
    blend_epochized:
    - {path: images, repetitions: 2}
    - {path: crude, subset: {range: [0%, 50%]}}
    - {path: epochs_inner.yaml, repetitions: 3}
  val:
    path: epochs_inner.yaml
    split_part: train
    subset: {range: [50%, 100%]}
  test:
    blend_epochized:
    - {path: captions, split_part: train}
""",
    "epochs_inner.yaml": V2
    + """splits:
  train:
    blend_epochized:
    - {path: texts, repetitions: 1, subflavors: {inner: true}}
    - {path: captions, repetitions: 2, subset: {range: [1, 3]}}
""",
    "join.yaml": V2
    + """splits:
  train:
    join:
    - {path: images, subflavors: {side: image, only: 1}}
    - {path: texts, nonmatch: skip, subflavors: {side: text}}
    joiner: {__module__: megatron.energon, __class__: OCRSample}
    subflavors: {joined: true}
  val:
    blend_epochized:
    - join:
      - {path: captions, split_part: train}
      - {path: images, split_part: train, nonmatch: skip}
      joiner: {__module__: megatron.energon, __class__: OCRSample}
      subset: {range: [50%, 100%]}
      repetitions: 2
    - path: texts
      split_part: train
""",
}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    write("images", 10, 2, {"txt": "image {}"}, "ImageSample", {"image": "txt"})
    write("texts", 10, 1, {"txt": "text {}"}, "TextSample", {"text": "txt"}, without=(4, 7))
    write("captions", 6, 1, {"json": '{{"text": "caption {}"}}'}, "TextSample", {"text": "json[text]"})
    write("crude", 7, 2, {"json": '{{"number": {}}}', "txt": "crude {}"}, None, {}, prefix="c")
    split = FOLDER / "images" / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard_0.tar/k02]"))
    for name, text in METADATASETS.items():
        (FOLDER / name).write_text(text)
    energon("prepare", str(FOLDER / "join.yaml"))
    golden = {name: look_at(name) for name in METADATASETS if not name.endswith("_inner.yaml")}
    (FOLDER / "golden.json").write_text(json.dumps(golden, sort_keys=True, separators=(",", ":")) + "\n")


def write(
    name: str,
    count: int,
    shards: int,
    parts: dict[str, str],
    kind: str | None,
    field_map: dict[str, str],
    without: tuple[int, ...] = (),
    prefix: str = "k",
) -> None:
    folder = FOLDER / name
    folder.mkdir(parents=True)
    numbers = [number for number in range(count) if number not in without]
    for shard in range(shards):
        with webdataset.TarWriter(str(folder / f"shard_{shard}.tar"), mtime=0) as tar:
            for number in numbers[len(numbers) * shard // shards : len(numbers) * (shard + 1) // shards]:
                contents = {part: text.format(number).encode() for part, text in parts.items()}
                tar.write({"__key__": f"{prefix}{number:02d}", **contents})
    kinds = ["--sample-type", kind or "CrudeWebdataset"]
    kinds += ["--field-map", json.dumps(field_map)] if kind else []
    energon(
        "prepare",
        str(folder),
        "--non-interactive",
        "--split-parts",
        "train:.*",
        "--split-parts",
        "val:.*",
        "--num-workers",
        "1",
        "--no-progress",
        *kinds,
    )
    if kind is None:
        (folder / ".nv-meta" / "dataset.yaml").write_text(
            ENERGON.format("CrudeWebdataset") + "subflavors: {kind: from dataset.yaml, crude: true}\n"
        )


def energon(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "energon"), *arguments], check=True)


@stateless
def cook(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=f"{sample['txt']} {sample['json']['number']}")


class Encoder(DefaultTaskEncoder):  # type: ignore[type-arg]
    cookers = (Cooker(cook),)


def look_at(name: str) -> dict[str, Any]:
    """Returns what Energon makes of the splits of a metadataset."""
    found: dict[str, Any] = {}
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    path = FOLDER / name
    for split in ("train", "val", "test"):
        if f"  {split}:" not in METADATASETS[name]:
            continue
        loaded = load_dataset(path).get_datasets(training=True, split_part=split, worker_config=config)
        entry: dict[str, Any] = {
            "mode": loaded.blend_mode.value,
            "leaves": [describe(item) for item in loaded.datasets],
            "validation": samples_of(
                get_val_dataset(path, split_part=split, worker_config=config, batch_size=None, task_encoder=Encoder())
            ),
        }
        if "join" not in name:
            entry["traversed"] = [
                [relative(item.path), item.split_part, item.subflavors]
                for item in traverse_metadataset(path, split_part=split)
            ]
        if name in ("epochs.yaml", "join.yaml"):
            entry["epoch"] = samples_of(
                get_train_dataset(
                    path,
                    split_part=split,
                    worker_config=config,
                    batch_size=None,
                    task_encoder=Encoder(),
                    shuffle_buffer_size=None,
                    max_samples_per_sequence=None,
                    repeat=False,
                )
            )
        found[split] = entry
    return found


def describe(item: Any) -> dict[str, Any]:
    dataset = item.dataset
    subset = getattr(dataset, "subset", None)
    return {
        "paths": [relative(path) for path in dataset.paths],
        "weight": item.weight,
        "repetitions": item.repetitions,
        "shuffle_over_epochs": dataset.shuffle_over_epochs,
        "subset": None if subset is None else [subset.range, subset.absolute_range],
        "subflavors": getattr(dataset, "subflavors", None),
    }


def samples_of(dataset: Any) -> list[Any]:
    """Returns key, content, subflavors and sources of the samples, sorted."""
    return sorted(
        (
            [
                sample.__key__,
                [getattr(sample, "image", None), getattr(sample, "text", None)],
                sample.__subflavors__,
                [
                    [relative(source.dataset_path), source.index, source.shard_name, list(source.file_names)]
                    for source in sample.__sources__
                ],
            ]
            for sample in get_loader(dataset)
        ),
        key=json.dumps,
    )


def relative(path: Any) -> str:
    return Path(str(path)).name


if __name__ == "__main__":
    main()
