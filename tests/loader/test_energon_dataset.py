"""A dataset that megatron-energon 7.4.1 prepared yields the same samples here."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DaliDecoder, DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_val_dataset

DATA = Path(__file__).parent.parent / "data"
FOLDER = DATA / "energon_7_4_1"
SAMPLES = json.loads((DATA / "energon_7_4_1_samples.json").read_text())
"""Keys, captions, shapes and digests of the pixels, as megatron-energon 7.4.1 loaded its own dataset (torchrgb8)."""


class Pil(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8")


class Dali(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


def load(folder: Path, split_part: str, encoder: type[Any]) -> list[dict[str, Any]]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    loader = get_loader(get_val_dataset(folder, split_part=split_part, worker_config=config, task_encoder=encoder()))
    return [
        {
            "key": sample.__key__,
            "caption": sample.caption,
            "shape": list(sample.image.shape),
            "sha256": hashlib.sha256(sample.image.contiguous().numpy().tobytes()).hexdigest(),
        }
        for sample in loader
    ]


@pytest.mark.parametrize("encoder", [Pil, Dali])
@pytest.mark.parametrize("split_part", ["train", "val"])
def test_same_keys_same_captions_same_pixels(split_part: str, encoder: type[Any]) -> None:
    assert len(SAMPLES[split_part]) >= 4
    assert load(FOLDER, split_part, encoder) == SAMPLES[split_part]


def test_also_where_only_the_tar_indices_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(FOLDER, folder)
    (folder / ".nv-meta" / "index.sqlite").unlink()
    assert load(folder, "train", Dali) == SAMPLES["train"]
