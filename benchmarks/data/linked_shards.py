"""Large datasets that take little disk: most of their shards are links to a few that were written."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from energon_dali.shards.index.extent_file import ExtentFileWriter, pack_names
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, UUID_NAME
from energon_dali.shards.index.extents import COLUMNS
from energon_dali.shards.index.tar_index import extents_of_tar
from energon_dali.shards.storage import StoragePath

CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
"""A dataset.yaml of crude samples, which every library can read without a decoder."""


def link_shards(root: Path, shards: int) -> None:
    """Adds links to the shards of a prepared dataset until there are enough of them, and indexes them too.

    Keys are repeated then, which `prepare` refuses and readers do not mind. There is no `index.sqlite` any more, since
    its keys are unique.

    Args:
        root: Folder of the dataset, prepared.
        shards: Number of shards that it gets.
    """
    own = sorted(path.name for path in root.glob("*.tar"))
    meta = root / ".nv-meta"
    counts = {}
    sections = []
    for name in own:
        extents = extents_of_tar(StoragePath.of(str(root)), name)
        columns = b"".join([*(bytes(getattr(extents, column)) for column, _ in COLUMNS), bytes(extents.keys)])
        names = pack_names(extents.part_names, extents.formats)
        sections.append((columns, names, extents.num_samples, extents.num_parts, (root / name).stat().st_size))
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, root.name))
    with ExtentFileWriter(meta / EXTENTS_NAME) as writer:
        for number in range(shards):
            name = f"shard-{number:05d}.tar"
            section = sections[number % len(own)]
            os.link(root / own[number % len(own)], root / name)
            os.link(root / f"{own[number % len(own)]}.idx", root / f"{name}.idx")
            counts[name] = section[2]
            writer.add(*section)
        writer.finish(identity, counts)
    for name in own:
        (root / name).unlink()
        (root / f"{name}.idx").unlink()
    (meta / UUID_NAME).write_text(identity)
    (meta / SQLITE_NAME).unlink(missing_ok=True)
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (meta / ".info.yaml").unlink(missing_ok=True)
    split = {"split_parts": {"train": list(counts), "val": []}, "exclude": []}
    (meta / "split.yaml").write_text(json.dumps(split))
    (meta / "dataset.yaml").write_text(CRUDE)  # last: a folder without it is incomplete
