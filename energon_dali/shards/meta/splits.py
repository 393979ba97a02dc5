"""The file `split.yaml` (or `split.json`): the shards of train, val and test, and what is excluded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.braces import expand_braces
from energon_dali.shards.documents.yaml_text import write_yaml
from energon_dali.shards.meta.document import META, check_keys, check_new_name, read_first_document
from energon_dali.shards.storage import StoragePath

DEFAULT_NAME = "split.yaml"
MAX_REPETITIONS = 1000
"""How often a part may name a shard, whose samples are then repeated."""
SPLIT_NAMES = (DEFAULT_NAME, "split.json")


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """The parts of a dataset, with all braces expanded."""

    split_parts: Mapping[str, tuple[str, ...]]
    """Shards of each part, in order."""
    exclude: tuple[str, ...] = ()
    """What is excluded from every part: `SHARD`, or `SHARD/KEY` for one sample."""
    path: str = field(default="", compare=False)
    """The file, for messages."""


def read_split(root: StoragePath, name: str | None = None) -> SplitConfig:
    """Returns the parts of a dataset.

    Args:
        root: Folder of the dataset.
        name: File in `.nv-meta`; None takes split.yaml or else split.json.

    Raises:
        DatasetFormatError: The file is missing or cannot be understood.
        StorageError: It cannot be read.
    """
    names = split_names(name)
    found = read_first_document(root, names)
    if found is None:
        raise DatasetFormatError(
            f"{root} has no {META}/{names[0]}, which says which shards are train, val and test. Run `energon-dali "
            f"prepare {root.quoted}`, or give split_config=NAME if it has another name."
        )
    path, document = found
    check_keys(document, {"split_parts", "exclude"}, path)
    parts = document.get("split_parts")
    exclude = document.get("exclude") or []
    if not isinstance(parts, dict) or not all(_is_names(shards) for shards in parts.values()) or not _is_names(exclude):
        raise DatasetFormatError(
            f"{path} should hold `split_parts: {{train: [shard patterns], ...}}` and may hold `exclude: [shards or "
            f"shard/key]`; the lists hold text. Correct it, or write it again with `energon-dali prepare "
            f"{root.quoted}`."
        )
    expanded = {part: _expand(shards or (), path) for part, shards in parts.items()}
    for part, shards in expanded.items():
        _check_repetitions(shards, part, path)
    return SplitConfig(expanded, _expand(exclude, path), str(path))


def split_names(name: str | None) -> tuple[str, ...]:
    """Returns the names under which a split file is looked for; None is split.yaml or else split.json."""
    return SPLIT_NAMES if name is None or name == DEFAULT_NAME else (name,)


def pack_split(name: str, split_parts: Mapping[str, Sequence[str]], exclude: Sequence[str] = ()) -> bytes:
    """Returns the content of the split file; patterns with braces are kept.

    Raises:
        ConfigError: The file cannot have this name.
    """
    check_new_name(name, (".yaml", ".json"), ("dataset.yaml",))
    document = {"split_parts": {part: list(shards) for part, shards in split_parts.items()}, "exclude": list(exclude)}
    if name.endswith(".json"):
        return json.dumps(document, indent=2).encode()
    return write_yaml(document)


def _is_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _check_repetitions(shards: Sequence[str], part: str, path: StoragePath) -> None:
    """Refuses a part that names one shard very often: opening it, and joining it, would take hours."""
    if len(shards) <= MAX_REPETITIONS:
        return
    name, times = Counter(shards).most_common(1)[0]
    if times > MAX_REPETITIONS:
        raise DatasetFormatError(
            f"{path} names the shard {name!r} {times:,} times in {part!r}, and at most {MAX_REPETITIONS:,} times are "
            "allowed. Name it once, and repeat the dataset with the repetitions of blend_epochized in a metadataset."
        )


def _expand(patterns: Sequence[str], path: StoragePath) -> tuple[str, ...]:
    try:
        return tuple(expand_braces(patterns))
    except ValueError as error:
        raise DatasetFormatError(f"{path}: {error}. Correct it.") from error
