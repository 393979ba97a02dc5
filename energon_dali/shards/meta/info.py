"""The file `.info.json` (older: `.info.yaml`): the shards in their order, and the number of samples in each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.meta.document import META, parse_document
from energon_dali.shards.storage import StoragePath

INFO_NAMES = (".info.json", ".info.yaml")


def read_shard_counts(root: StoragePath) -> dict[str, int]:
    """Returns the number of samples of each shard, by its path inside the dataset, in the order of the index.

    Raises:
        DatasetFormatError: The dataset is not prepared, or the file is damaged.
        StorageError: It cannot be read.
    """
    if root.is_local and root.is_file():
        raise DatasetFormatError(
            f"{root} is a file, and neither a metadataset (.yaml) nor lines of JSON (.jsonl). Give one of these, or "
            "the folder that holds the tar shards."
        )
    refuse_meta(root)
    for name in INFO_NAMES:
        path = root / META / name
        content = path.read_if_there()
        if content is not None:
            break
    else:
        if root.is_local and not root.is_dir():
            raise DatasetFormatError(f"{root} is no folder. Give the folder that holds the tar shards.")
        raise DatasetFormatError(
            f"{root} is not prepared: {META}/{INFO_NAMES[0]} is missing. Run `energon-dali prepare "
            f"{shlex.quote(str(root))}`."
        )
    counts = parse_document(content, path, root).get("shard_counts")
    if not isinstance(counts, dict) or not all(
        isinstance(shard, str) and isinstance(count, int) and not isinstance(count, bool) and count >= 0
        for shard, count in counts.items()
    ):
        raise DatasetFormatError(
            f"{path} has no `shard_counts` that give a number of samples per shard. Make it anew with `energon-dali "
            f"prepare {shlex.quote(str(root))}`."
        )
    return counts


def refuse_meta(root: StoragePath) -> None:
    """Refuses the folder of prepared files where that of the dataset is meant.

    Raises:
        DatasetFormatError: The path ends in `.nv-meta`.
    """
    if root.name == META:
        raise DatasetFormatError(
            f"{root} holds what `energon-dali prepare` wrote. Give the dataset it belongs to: "
            f"{root.url.rpartition('/')[0]}"
        )


def info_present(root: StoragePath) -> bool:
    """Returns whether the dataset was prepared before.

    Raises:
        StorageError: The storage does not answer.
    """
    return any((root / META / name).is_file() for name in INFO_NAMES)


def pack_shard_counts(root: StoragePath, shard_counts: Mapping[str, int], version: str) -> dict[str, bytes]:
    """Returns `.info.json`, and `.info.yaml` too where there is one, so that no reader finds an old one.

    Args:
        root: Folder of the dataset.
        shard_counts: Samples per shard, in the order of the index.
        version: Program that counted them.

    Returns:
        Content of each file, by its name in `.nv-meta`.

    Raises:
        StorageError: The storage does not answer.
    """
    import yaml

    document = {"energon_version": version, "shard_counts": dict(shard_counts)}
    files = {INFO_NAMES[0]: json.dumps(document, indent=2).encode()}
    if (root / META / INFO_NAMES[1]).is_file():
        files[INFO_NAMES[1]] = yaml.safe_dump(document, sort_keys=False).encode()
    return files
