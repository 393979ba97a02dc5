"""A Hugging Face dataset on disk: Parquet files, or what `save_to_disk` wrote. The package `datasets` is not needed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from energon_dali.errors import DatasetFormatError
from energon_dali.pack.columns import Columns, find_columns
from energon_dali.pack.files import MediaKind, guess_suffix, media_kind, suffix_of
from energon_dali.pack.options import PackOptions
from energon_dali.pack.reading import OnSkipped, ReaderSpec, Source, TableFile
from energon_dali.pack.record import Record, Row, key_of, numbered_key
from energon_dali.shards.documents.content import check_inner_path, excerpt, read_content
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage import StoragePath

TABLE_SUFFIXES = frozenset({"parquet", "arrow"})
_FEATURES: dict[str, MediaKind] = {"Image": "image", "Video": "video", "Audio": "audio"}
_SPLITS = {"train": "train", "training": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val"}
_SPLITS |= {"test": "test", "testing": "test", "eval": "test"}
_SPLIT = re.compile(r"(?:^|[/_.-])(" + "|".join(_SPLITS) + r")(?=[/_.-])")
_EXAMPLE_ROWS = 4


class HuggingFaceSource(Source):
    """Parquet or Arrow files.

    Args:
        root: Absolute path of their folder.
        names: The files, relative to it; None looks for them.
        options: What the user chose.

    Raises:
        ConfigError: A column does not exist, or pyarrow is not installed.
        DatasetFormatError: A file is damaged, or files have different columns.
    """

    kind = "hugging-face"

    def __init__(self, root: str, names: list[str] | None, options: PackOptions) -> None:
        super().__init__()
        self.root = root
        self._options = options
        self._files = _find_files(root) if names is None else [(name, None) for name in names]
        if not self._files:
            raise DatasetFormatError(f"{root} holds no .parquet or .arrow file. Give the folder that holds them.")
        file = TableFile(f"{root}/{self._files[0][0]}")
        self._first = self._files[0][0]
        self._names = list(file.schema.names)
        self.columns = _find_columns(file, options)
        self.sample_type = self.columns.sample_type

    def describe(self) -> list[str]:
        splits = sorted({split for _, split in self._files if split})
        more = f", of the splits {', '.join(splits)}" if splits else ""
        return [f"{len(self._files):,} files{more}", self.columns.describe()]

    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        number, group = 0, 0
        for path, split in self._files:
            full = f"{self.root}/{path}"
            self._fingerprint.add_file(full)
            file = TableFile(full)
            lacking = [name for name in self.columns.used if name not in file.schema.names]
            if lacking:
                raise DatasetFormatError(
                    f"{full} has no column {lacking[0]!r}, and {self._first} has. Pack files with other columns on "
                    "their own."
                )
            column = self.columns.key
            for block, (rows, size) in enumerate(file.blocks()):
                average = size // max(1, rows)
                keys = None if column is None else file.block(block, [column]).column(0).to_pylist()
                for row in range(rows):
                    key = numbered_key(number) if keys is None else key_of(keys[row])
                    if key is None:
                        skipped(f"{path}, row {number}", f"the column {column!r} holds no key")
                    else:
                        yield Record(key, row=Row(path, block, row, average), split_part=split, group=group)
                    number += 1
                group += 1

    def reader(self) -> ReaderSpec:
        return ReaderSpec(self.root, self.root, self._options.allow_outside, self.columns)


def _find_files(root: str) -> list[tuple[str, str | None]]:
    """Returns (path relative to the folder, split part) of each file, in order."""
    folder = StoragePath.of(root)
    splits = _document(folder / "dataset_dict.json").get("splits")
    if isinstance(splits, list):
        found: list[tuple[str, str | None]] = []
        for split in splits:
            _check_name(split, folder / "dataset_dict.json")
            found += [(f"{split}/{name}", _SPLITS.get(split, clean_split(split))) for name in _saved(folder / split)]
        return found
    if (folder / "state.json").is_file():
        return [(name, None) for name in _saved(folder)]
    names = [name for name in folder.list_files() if suffix_of(name) in TABLE_SUFFIXES]
    names = [name for name in names if not name.startswith(".") and "/." not in name]
    declared = [_SPLIT.search(f"{name}") for name in names]
    return [(name, _SPLITS[split[1]] if split else None) for name, split in zip(names, declared, strict=True)]


def clean_split(name: str) -> str:
    """Returns the name of a split as the start of a shard's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _saved(folder: StoragePath) -> list[str]:
    """Returns the files of a split that `save_to_disk` wrote.

    Raises:
        DatasetFormatError: Its state cannot be understood.
    """
    state = _document(folder / "state.json")
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise DatasetFormatError(f"{folder}/state.json does not name its files. Save the dataset again.")
    if state.get("_indices_files"):
        raise DatasetFormatError(f"{folder} holds a selection of rows. Call flatten_indices() before save_to_disk().")
    names = [file.get("filename") for file in files]
    for name in names:
        _check_name(name, folder / "state.json")
    return names


def _check_name(name: Any, document: StoragePath) -> None:
    try:
        if not isinstance(name, str):
            raise ValueError(f"{excerpt(name)} is not the name of a file")
        check_inner_path(name)
    except ValueError as error:
        raise DatasetFormatError(f"{document}: {error}. Save the dataset again.") from error


def _document(path: StoragePath) -> dict[str, Any]:
    content = read_content(path)
    try:
        value = {} if content is None else parse_json(content)
    except ValueError as error:
        raise DatasetFormatError(f"{path} is not JSON: {error}. Save the dataset again.") from error
    return value if isinstance(value, dict) else {}


def _find_columns(file: TableFile, options: PackOptions) -> Columns:
    """Returns which column is what: by the features that `datasets` stores, by Arrow's types, and by first values."""
    import pyarrow

    features = _features(file.schema)
    kinds: dict[str, MediaKind] = {}
    label_names: dict[str, list[str]] = {}
    unusable: list[str] = []
    for field in file.schema:
        feature = features.get(field.name)
        feature = feature.get("feature", feature) if isinstance(feature, dict) else feature
        feature = feature[0] if isinstance(feature, list) and feature else feature
        kind = _FEATURES.get(str(feature.get("_type"))) if isinstance(feature, dict) else None
        if kind is not None:
            kinds[field.name] = kind
        elif isinstance(feature, dict) and isinstance(feature.get("names"), list):
            label_names[field.name] = [str(name) for name in feature["names"]]
        elif _holds_bytes(field.type):
            unusable.append(field.name)
    kinds |= _media_by_content(file, unusable)
    integers = [field.name for field in file.schema if pyarrow.types.is_integer(field.type)]
    texts = [field.name for field in file.schema if pyarrow.types.is_string(field.type)]
    return find_columns(
        file.schema.names,
        options,
        kinds=kinds,
        examples=_examples(file, texts),
        label_names=label_names,
        integers=integers,
        unusable=unusable,
        lists=[field.name for field in file.schema if _is_list(field.type)],
    )


def _features(schema: Any) -> dict[str, Any]:
    stored = (schema.metadata or {}).get(b"huggingface")
    try:
        value = json.loads(stored) if stored else {}
        features = value["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _holds_bytes(kind: Any) -> bool:
    """Returns whether a type of Arrow is bytes, {bytes, path}, or a list of them."""
    import pyarrow

    types = pyarrow.types
    if _is_list(kind):
        return _holds_bytes(kind.value_type)
    if types.is_struct(kind):
        return any(_holds_bytes(kind.field(index).type) for index in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _examples(file: TableFile, columns: list[str]) -> list[dict[str, Any]]:
    for block, (rows, _) in enumerate(file.blocks()):
        if rows:
            values: list[dict[str, Any]] = file.block(block, columns).slice(0, _EXAMPLE_ROWS).to_pylist()
            return values
    return []


def _media_by_content(file: TableFile, columns: list[str]) -> dict[str, MediaKind]:
    """Returns the columns of bytes whose first values are media."""
    found: dict[str, MediaKind] = {}
    for row in _examples(file, columns):
        for name, value in row.items():
            value = value[0] if isinstance(value, list) and value else value
            content = value.get("bytes") if isinstance(value, dict) else value
            kind = media_kind(guess_suffix(content)) if isinstance(content, bytes) else None
            if kind is not None:
                found.setdefault(name, kind)
    return found


def is_hugging_face(root: str, names: Iterable[str]) -> bool:
    """Returns whether a folder holds a Hugging Face dataset.

    Args:
        root: Absolute path of the folder.
        names: All files below it.
    """
    if any(os.path.isfile(f"{root}/{name}") for name in ("dataset_dict.json", "state.json")):
        return True
    return any(suffix_of(name) in TABLE_SUFFIXES for name in names)
