"""A dataset of random texts of random lengths, in shards of samples with a .txt part."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np

MEAN_LENGTH = 400
"""Bytes of a text, on average about."""
LONGEST = 2048
SHORTEST = 16

_DATASET_YAML = """sample_type:
  __module__: megatron.energon
  __class__: TextSample
field_map:
  text: txt
"""


def make_texts(folder: Path, *, samples: int, shards: int = 10, seed: int = 40) -> Path:
    """Writes a prepared dataset of ASCII texts, with lengths of a log-normal distribution, unless it exists.

    Args:
        folder: Parent folder.
        samples: Number of samples.
        shards: Number of shards; samples are distributed over them in order.
        seed: Of texts and lengths.

    Returns:
        Its folder.
    """
    from energon_dali.shards import prepare_dataset

    root, made_of = folder / f"texts-{samples}-{shards}-{seed}", {"samples": samples, "shards": shards, "seed": seed}
    finished = root / "recipe.json"  # written last
    if finished.exists() and json.loads(finished.read_text()) == made_of:
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    drawn = generator.lognormal(np.log(MEAN_LENGTH) - 0.5, 1.0, samples)
    lengths = np.clip(drawn, SHORTEST, LONGEST).astype(np.int64)
    letters = generator.integers(97, 123, LONGEST * 64, dtype=np.uint8).tobytes()
    for shard, numbers in enumerate(np.array_split(np.arange(samples), shards)):
        with tarfile.open(root / f"shard-{shard:05d}.tar", "w") as tar:
            for number in numbers:
                size = int(lengths[number])
                start = int(number) * 7919 % (len(letters) - LONGEST)
                entry = tarfile.TarInfo(f"{number:08d}.txt")
                entry.size = size
                tar.addfile(entry, io.BytesIO(letters[start : start + size]))
    prepare_dataset(str(root), split_patterns=[("train", ".*")])
    (root / ".nv-meta" / "dataset.yaml").write_text(_DATASET_YAML)
    finished.write_text(json.dumps(made_of))
    return root
