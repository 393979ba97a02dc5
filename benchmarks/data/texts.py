"""Random texts of random lengths, in shards of samples with only a .txt part, prepared."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

MEDIAN_BYTES = 240
"""Median length of a text; the mean is 350 bytes."""
SHORTEST, LONGEST = 16, 2048

_DATASET_YAML = """sample_type:
  __module__: megatron.energon
  __class__: TextSample
field_map:
  text: txt
"""


def write_texts(folder: Path, *, samples: int, shards: int, seed: int) -> None:
    """Writes a dataset of texts of small letters, whose lengths are from a clipped log-normal distribution.

    Args:
        folder: Where the shards are written.
        samples: Number of samples.
        shards: Number of shards; samples are distributed over them in order.
        seed: Of texts and lengths.
    """
    from energon_dali.shards import prepare_dataset

    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    drawn = MEDIAN_BYTES * np.exp(generator.standard_normal(samples))
    lengths = np.clip(drawn, SHORTEST, LONGEST).astype(np.int64).tolist()
    letters = generator.integers(ord("a"), ord("z") + 1, 1 << 18, dtype=np.uint8).tobytes()
    starts = generator.integers(0, len(letters) - LONGEST, samples).tolist()
    for shard, numbers in enumerate(np.array_split(np.arange(samples), shards)):
        with tarfile.open(folder / f"shard-{shard:03d}.tar", "w") as tar:
            for number in numbers.tolist():
                entry = tarfile.TarInfo(f"{number:08d}.txt")
                entry.size = lengths[number]
                tar.addfile(entry, io.BytesIO(letters[starts[number] : starts[number] + lengths[number]]))
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    (folder / ".nv-meta" / "dataset.yaml").write_text(_DATASET_YAML)
