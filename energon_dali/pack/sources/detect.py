"""Finds out what a source is."""

from __future__ import annotations

import os

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.pack.files import media_kind, suffix_of
from energon_dali.pack.options import KINDS, PackOptions
from energon_dali.pack.reading import Source
from energon_dali.pack.sources.conversations import ConversationSource, is_conversation
from energon_dali.pack.sources.folder import FolderSource
from energon_dali.pack.sources.hugging_face import TABLE_SUFFIXES as ARROW_SUFFIXES
from energon_dali.pack.sources.hugging_face import HuggingFaceSource, is_hugging_face
from energon_dali.pack.sources.table import TABLE_SUFFIXES, TableSource, first_rows
from energon_dali.pack.sources.tars import TarSource
from energon_dali.shards.storage import StoragePath

_NAMED_TABLES = ("metadata.csv", "metadata.jsonl", "metadata.tsv", "metadata.json")
"""Names that Hugging Face's folders of images use."""
_JSON_SUFFIXES = ("json", "jsonl", "ndjson")


def open_source(path: str, options: PackOptions, out: StoragePath) -> Source:
    """Returns the source at a path.

    Args:
        path: A file or folder; a URL for tars.
        options: What the user chose.
        out: Folder of the shards, which may be inside the source and does not belong to it.

    Raises:
        ConfigError: An option does not fit the source, or the source could be several things.
        DatasetFormatError: There is nothing that can be packed.
        StorageError: The source cannot be read.
    """
    root = StoragePath.of(path)
    hidden = out.url.removeprefix(f"{root.url}/") if out.url.startswith(f"{root.url}/") else ""
    if out.url == root.url or root.url.startswith(f"{out.url}/"):
        raise ConfigError(f"{out} is the source, or holds it. Give another folder for the shards.")
    if not root.is_local:
        if options.kind not in ("auto", "tars"):
            raise ConfigError(f"{path} is a URL, from which only tars can be packed. Copy the files to a local folder.")
        return TarSource(root, None, options, hidden)
    full = root.url
    if os.path.isfile(full):
        return _open_file(full, options)
    if not os.path.isdir(full):
        raise StorageError(f"{path} does not exist. Give a folder of images, a table, or a folder of shards.")
    kind = options.kind
    names = root.list_files()
    names = [name for name in names if not name.startswith(".") and not (hidden and name.startswith(f"{hidden}/"))]
    if not names:
        raise DatasetFormatError(f"{full} holds no files. Give the folder that holds them.")
    tables = _tables(names)
    if kind == "auto":
        kind = _kind_of(full, names, tables)  # type: ignore[assignment]
    if kind == "hugging-face":
        return HuggingFaceSource(full, None, options)
    if kind == "tars":
        return TarSource(root, None, options, hidden)
    if kind == "folder":
        return FolderSource(full, options, out.url)
    if not tables:
        raise ConfigError(f"{path} holds no table, as kind={kind} needs. Give the path of the table itself.")
    if len(tables) > 1:
        raise ConfigError(f"{path} holds several tables: {', '.join(tables[:10])}. Give the path of one of them.")
    return _open_file(f"{full}/{tables[0]}", options)


def _tables(names: list[str]) -> list[str]:
    """Returns the tables at the top of a folder: metadata.csv and the like, or else those that caption no file."""
    named = [name for name in _NAMED_TABLES if name in names]
    if named:
        return named
    stems = {name.rpartition(".")[0] for name in names if media_kind(suffix_of(name))} | set(names)
    top = [name for name in names if "/" not in name and suffix_of(name) in TABLE_SUFFIXES]
    return [name for name in top if name.rpartition(".")[0] not in stems]


def _kind_of(root: str, names: list[str], tables: list[str]) -> str:
    """Returns what a folder holds.

    Raises:
        ConfigError: It could be several things.
    """
    found = []
    if is_hugging_face(root, names):
        found.append("hugging-face")
    if any(name.endswith(".tar") for name in names):
        found.append("tars")
    if tables and _names_media(f"{root}/{tables[0]}"):
        found.append("table")
    if len(found) > 1:
        raise ConfigError(
            f"{root} could be {' or '.join(found)}. Choose with --kind ({', '.join(KINDS[1:])}), or give the path of "
            "one file."
        )
    return found[0] if found else "folder"


def _names_media(path: str) -> bool:
    """Returns whether the first rows of a table are conversations or name files."""
    try:
        rows = first_rows(path)
    except DatasetFormatError:
        return False
    if any(map(is_conversation, rows)):
        return True
    values = [value for row in rows for value in row.values() if isinstance(value, str) and len(value) < 4096]
    return any(media_kind(suffix_of(value)) for value in values)


def _open_file(full: str, options: PackOptions) -> Source:
    suffix = suffix_of(full)
    folder, name = os.path.split(full)
    if suffix in ARROW_SUFFIXES:
        return HuggingFaceSource(folder, [name], options)
    if suffix == "tar":
        return TarSource(StoragePath.of(folder), [name], options)
    if suffix not in TABLE_SUFFIXES:
        raise DatasetFormatError(
            f"{full} cannot be packed. Give a folder, or a file that ends in "
            f"{', '.join(sorted(f'.{suffix}' for suffix in TABLE_SUFFIXES | ARROW_SUFFIXES))} or .tar."
        )
    rows = first_rows(full)
    kind = options.kind
    if kind == "auto":
        kind = "conversations" if suffix in _JSON_SUFFIXES and any(map(is_conversation, rows)) else "table"
    if kind == "conversations":
        return ConversationSource(full, options)
    if kind != "table":
        raise ConfigError(f"{full} is a table, and kind={kind} was given. Give its folder, or leave kind out.")
    return TableSource(full, options)
