"""Reads the parts of records, in the process that writes the shard."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from energon_dali.errors import DatasetError
from energon_dali.pack.columns import Columns
from energon_dali.pack.files import MediaFolder
from energon_dali.pack.media import guess_suffix
from energon_dali.pack.record import (
    FilePart,
    JsonPart,
    Part,
    RangePart,
    Record,
    SkipRecord,
    TextPart,
    json_bytes,
)
from energon_dali.pack.rows import RowReader
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.path import RangeReader

_TEXTS = frozenset({"txt", "text", "transcript"})


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """How the records of a source are read. Picklable, and valid on every node that sees the same files."""

    root: str
    """The source: path of a folder, or its URL for tars."""
    media_root: str
    """Folder that the paths of files are relative to."""
    allow_outside: bool = False
    columns: Columns | None = None
    """How rows of Parquet and Arrow files become parts."""
    needed_json: str | None = None
    """Key that the part `json` must have as text, if the caption is in it."""


class RecordReader:
    """Reads records. Keeps files open, so use one per shard.

    Args:
        spec: The source.
    """

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._folder = MediaFolder(spec.media_root, allow_outside=spec.allow_outside)
        self._rows = None if spec.columns is None else RowReader(spec.root, spec.columns, self._folder)
        self._open = functools.lru_cache(maxsize=64)(self._open_file)

    def read(self, record: Record) -> list[tuple[str, bytes]]:
        """Returns (name, content) of each part, sorted by name.

        Raises:
            SkipRecord: Something cannot be read, or is not what its name says.
            DatasetError: The source has changed since it was looked at.
        """
        parts = record.parts
        if record.row is not None:
            assert self._rows is not None, "rows come from a source with columns"
            parts = self._rows.parts(record.row)
        found: dict[str, bytes] = {}
        for part in parts:
            name, content = self._part(part)
            if name in found:
                raise SkipRecord(f"it has two parts {name!r}")
            self._check_text(name, content)
            found[name] = content
        return sorted(found.items())

    def _part(self, part: Part) -> tuple[str, bytes]:
        if isinstance(part, FilePart):
            content = self._folder.read(part.path, part.size)
        elif isinstance(part, RangePart):
            content = self._open(part.path).read_at(part.offset, part.size)
            if len(content) != part.size:
                raise DatasetError(
                    f"{self._spec.root}/{part.path} has shrunk since the run began. Pack a source that does not "
                    "change; then run again with --overwrite."
                )
        elif isinstance(part, TextPart):
            content = part.text.encode()
        elif isinstance(part, JsonPart):
            content = json_bytes(part.value)
        else:
            content = part.content
        name = part.name
        if not name or name.endswith("."):
            suffix = guess_suffix(content)
            if not suffix:
                raise SkipRecord("a file without a suffix is not recognised as image, video or audio by its content")
            name += suffix
        return name, content

    def _open_file(self, path: str) -> RangeReader:
        return (StoragePath.of(self._spec.root) / path).open()

    def _check_text(self, name: str, content: bytes) -> None:
        """Refuses text that no loader could read.

        Raises:
            SkipRecord: It is not UTF-8, or not JSON.
        """
        suffix = name.rpartition(".")[2]
        try:
            if suffix in _TEXTS:
                content.decode()
            elif suffix == "json":
                value = parse_json(content)
                wanted = self._spec.needed_json
                if name == "json" and wanted is not None:
                    caption = value.get(wanted) if isinstance(value, dict) else None
                    if not isinstance(caption, str) or not caption:
                        raise SkipRecord(f"its JSON has no {wanted!r}")
        except UnicodeDecodeError as error:
            raise SkipRecord(f"its part {name!r} is not UTF-8: {error.reason} at byte {error.start}") from None
        except ValueError as error:
            raise SkipRecord(f"its part {name!r} is not JSON: {excerpt(str(error))}") from None
