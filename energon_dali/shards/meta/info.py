"""The file `.info.json` (formerly `.info.yaml`): the shards in order, and the number of samples in each."""

from __future__ import annotations

import json
from collections.abc import Mapping

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.content import check_inner_paths
from energon_dali.shards.documents.yaml_text import write_yaml
from energon_dali.shards.meta.document import META, read_first_document
from energon_dali.shards.storage import StoragePath

INFO_NAMES = (".info.json", ".info.yaml")
MAX_SHARD_SAMPLES = 1 << 32
"""A sample takes at least 512 bytes in a tar, and a shard may have 2 TiB."""


def read_shard_counts(root: StoragePath) -> dict[str, int]:
    """Returns the number of samples of each shard, by its path in the dataset, in the order of the index.

    Raises:
        DatasetFormatError: The dataset is not prepared, or the file is damaged.
        StorageError: It cannot be read.
    """
    refuse_meta(root)
    found = read_first_document(root, INFO_NAMES)
    if found is None:
        if root.is_local and root.is_file():
            raise DatasetFormatError(
                f"{root} is a file, and neither a metadataset (.yaml) nor lines of JSON (.jsonl). Give one of these, "
                "or the folder that holds the tar shards."
            )
        if root.is_local and not root.is_dir():
            raise DatasetFormatError(f"{root} is not a folder. Give the folder that holds the tar shards.")
        raise DatasetFormatError(
            f"{root} is not prepared: {META}/{INFO_NAMES[0]} is missing. Run `energon-dali prepare {root.quoted}`."
        )
    path, document = found
    counts = document.get("shard_counts")
    if not isinstance(counts, dict) or not all(
        isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_SHARD_SAMPLES
        for count in counts.values()
    ):
        raise DatasetFormatError(
            f"{path} has no `shard_counts` that give a number of samples (at most {MAX_SHARD_SAMPLES:,}) per shard. "
            f"{_remedy(root)}"
        )
    try:
        check_inner_paths(counts)
    except ValueError as error:
        raise DatasetFormatError(f"{path}: {error}. {_remedy(root)}") from error
    return counts


def _remedy(root: StoragePath) -> str:
    return f"Write it again with `energon-dali prepare {root.quoted}`."


def refuse_meta(root: StoragePath) -> None:
    """Rejects the path of `.nv-meta` instead of that of the dataset.

    Raises:
        DatasetFormatError: The path ends in `.nv-meta`.
    """
    if root.name == META:
        raise DatasetFormatError(
            f"{root} holds what `energon-dali prepare` wrote. Give the dataset it belongs to: "
            f"{root.url.rpartition('/')[0]}"
        )


def info_present(root: StoragePath) -> bool:
    """Returns whether the dataset is prepared.

    Raises:
        StorageError: The storage does not answer.
    """
    return any((root / META / name).is_file() for name in INFO_NAMES)


def pack_shard_counts(root: StoragePath, shard_counts: Mapping[str, int], version: str) -> dict[str, bytes]:
    """Returns `.info.json`, and also `.info.yaml` if it exists, so that no reader finds an old one.

    Args:
        root: Folder of the dataset.
        shard_counts: Number of samples per shard, in the order of the index.
        version: Name and version of the program that counted them.

    Returns:
        Content of each file, by its name in `.nv-meta`.

    Raises:
        StorageError: The storage does not answer.
    """
    document = {"energon_version": version, "shard_counts": dict(shard_counts)}
    files = {INFO_NAMES[0]: json.dumps(document, indent=2).encode()}
    if (root / META / INFO_NAMES[1]).is_file():
        files[INFO_NAMES[1]] = write_yaml(document)
    return files
