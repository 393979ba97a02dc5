"""Datasets with a real index of many millions of samples, and little on disk.

All shards are links to one small tar, and sample i of a shard is member i modulo its number of members. Whatever is
read is a valid sample that belongs to its key, and goes through the loader's own code; only the disk has less to do,
since the tar stays in the page cache. Wherever a shard has no more samples than the tar has members, it is an ordinary
shard, with its `.tar.idx`.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from pathlib import Path

import numpy as np
import webdataset

from energon_dali.shards.index.extent_file import ExtentFileWriter, pack_names
from energon_dali.shards.index.extent_index import EXTENTS_NAME, UUID_NAME
from energon_dali.shards.index.extents import COLUMNS
from energon_dali.shards.index.tar_index import pack_tar_index

TEXT_BYTES = 200
"""Size of a sample's text; in the tar it takes 1024 bytes, with its header and the padding."""
MEMBER_BYTES = 1024
MOST_MEMBERS = 100_000
"""Members of the tar: about 100 MB."""
SHARDS_PER_FOLDER = 1000
LINKS_PER_FILE = 50_000
"""Shards that are links to one copy of the tar: ext4 allows 65,000 names of a file."""


def text_of(number: int) -> bytes:
    """Returns the text of a member, which no other member has."""
    words = f"sample {number}, {zlib.crc32(number.to_bytes(8, 'little')):08x}; "
    return (words * (TEXT_BYTES // len(words) + 1))[:TEXT_BYTES].encode()


def key_of(number: int) -> str:
    """Returns the key of a member."""
    return f"{number:05d}"


def write_synthetic(root: Path, samples: int, shards: int) -> None:
    """Writes a prepared dataset of text samples.

    Args:
        root: Its folder, which is empty.
        samples: Number of samples.
        shards: Number of shards, which are equally long: `samples` is a multiple of it.

    Raises:
        ValueError: The samples cannot be distributed equally.
        OSError: The folder cannot be written.
    """
    if samples % shards:
        raise ValueError(f"{samples:,} samples do not divide into {shards:,} equally long shards.")
    per_shard = samples // shards
    members = min(per_shard, MOST_MEMBERS)
    tar = root / "members"
    _write_tar(tar, members)
    names = [f"{shard // SHARDS_PER_FOLDER:02d}/shard-{shard:05d}.tar" for shard in range(shards)]
    for folder in sorted({name.partition("/")[0] for name in names}):
        (root / folder).mkdir()
    offsets = root / "members.idx"
    offsets.write_bytes(pack_tar_index(list(range(0, (members + 1) * MEMBER_BYTES, MEMBER_BYTES))))
    for number, name in enumerate(names):
        if number and number % LINKS_PER_FILE == 0:
            tar, offsets = (_copy(path, number // LINKS_PER_FILE) for path in (tar, offsets))
        os.link(tar, root / name)
        if members == per_shard:
            os.link(offsets, root / f"{name}.idx")
    meta = root / ".nv-meta"
    meta.mkdir()
    counts = dict.fromkeys(names, per_shard)
    identity = str(uuid.UUID(int=samples * 100_000 + shards))
    section, stored_names = _section(per_shard, members), pack_names(["txt"], [""])
    with ExtentFileWriter(meta / EXTENTS_NAME) as writer:
        for _ in names:
            writer.add(section, stored_names, per_shard, per_shard, tar.stat().st_size)
        writer.finish(identity, counts)
    (meta / UUID_NAME).write_text(identity)
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (meta / "split.yaml").write_text(json.dumps({"split_parts": {"train": names, "val": []}, "exclude": []}))
    (meta / "dataset.yaml").write_text(
        json.dumps(
            {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {"kind": "synthetic"}}
        )
    )


def _copy(path: Path, number: int) -> Path:
    return Path(shutil.copyfile(path, path.with_name(f"{path.name}-{number}")))


def _write_tar(path: Path, members: int) -> None:
    writer = webdataset.TarWriter(str(path), mtime=0)
    for number in range(members):
        writer.write({"__key__": key_of(number), "txt": text_of(number)})
    writer.close()


def _section(samples: int, members: int) -> bytes:
    """Returns the columns of a shard, and its keys."""
    member = np.arange(samples, dtype=np.uint32) % np.uint32(members)
    width = len(key_of(0))
    starts = np.arange(samples + 1, dtype=np.uint64)
    columns = {
        "part_size": np.full(samples, TEXT_BYTES, np.uint64),
        "first_part": starts.astype(np.uint32),
        "key_start": (starts * np.uint64(width)).astype(np.uint32),
        "part_block": member * np.uint32(MEMBER_BYTES // 512) + np.uint32(1),
        "part_width": np.zeros(samples, np.uint32),
        "part_height": np.zeros(samples, np.uint32),
        "part_name": np.zeros(samples, np.uint16),
        "part_format": np.zeros(samples, np.uint8),
    }
    all_keys = "".join(map(key_of, range(members))).encode()
    keys = all_keys * (samples // members) + all_keys[: samples % members * width]
    return b"".join([*(columns[name].tobytes() for name, _ in COLUMNS), keys])
