"""The shards of a dataset as separate datasets, blended by a metadataset. Option: leaves, their number."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from benchmarks.candidates.task import Task


def dataset_path(task: Task) -> str:
    """Returns the dataset of a task, or the metadataset that blends its shards in `leaves` datasets, equally weighted.

    The datasets are created next to the whole one, with links to its shards, and are kept for later candidates.
    A quick run has fewer shards, and so fewer datasets.
    """
    leaves = min(int(task.options.get("leaves", 1)), len(task.shards))
    if leaves == 1:
        return task.dataset
    root = Path(f"{task.dataset}-{leaves}-leaves")
    finished = root / "blend.yaml"
    if not finished.exists():
        shutil.rmtree(root, ignore_errors=True)
        folders = [_make_leaf(task, root, leaf, leaves) for leaf in range(leaves)]
        blend = [{"path": str(folder), "split_part": "train", "weight": 1.0} for folder in folders]
        whole = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
        finished.write_text(json.dumps(whole))  # JSON is YAML
    return str(finished)


def _make_leaf(task: Task, root: Path, leaf: int, leaves: int) -> Path:
    from energon_dali.shards import prepare_dataset

    folder = root / f"part-{leaf:03d}"
    folder.mkdir(parents=True)
    for shard in task.shards[len(task.shards) * leaf // leaves : len(task.shards) * (leaf + 1) // leaves]:
        os.symlink(shard, folder / Path(shard).name)
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    shutil.copy(Path(task.dataset) / ".nv-meta" / "dataset.yaml", folder / ".nv-meta" / "dataset.yaml")
    return folder
