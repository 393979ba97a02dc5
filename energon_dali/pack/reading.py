"""What every kind of source can do, and how the parts of its records are read in the process that writes a shard.

Parts are files, members of tars, and rows of tables.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError
from energon_dali.pack.columns import Columns, row_to_parts
from energon_dali.pack.files import Fingerprint, MediaFolder, guess_suffix, media_kind, suffix_of
from energon_dali.pack.record import (
    BytesPart,
    FilePart,
    JsonPart,
    Part,
    RangePart,
    Record,
    Row,
    SkipRecord,
    TextPart,
    json_bytes,
)
from energon_dali.pack.sample_types import make_dataset_config
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.protocols import RangeReader

_MAGIC_BYTES = 6


class TableFile:
    """A Parquet file, an Arrow stream or an Arrow file, read by blocks: row groups or record batches.

    Args:
        path: Absolute path.

    Raises:
        ConfigError: pyarrow is not installed.
        DatasetFormatError: It is none of them.
    """

    def __init__(self, path: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(
                f"{path} is a Parquet or Arrow file, and pyarrow is not installed. Run `pip install "
                "'energon-dali[pack]'`."
            ) from error
        self.path = path
        self._batches: list[Any] = []
        self._parquet: Any = None
        try:
            with open(path, "rb") as file:
                magic = file.read(_MAGIC_BYTES)
            if magic.startswith(b"PAR1"):
                self._parquet = pyarrow.parquet.ParquetFile(path, memory_map=True)
                self.schema: Any = self._parquet.schema_arrow
            else:
                source = pyarrow.memory_map(path)
                if magic.startswith(b"ARROW1"):
                    opened = pyarrow.ipc.open_file(source)
                    self._batches = [opened.get_batch(number) for number in range(opened.num_record_batches)]
                else:
                    opened = pyarrow.ipc.open_stream(source)
                    self._batches = list(opened)
                self.schema = opened.schema
        except (pyarrow.ArrowException, OSError) as error:
            raise DatasetFormatError(
                f"{path} cannot be read as Parquet or Arrow: {error}. Download or write it again."
            ) from error

    def blocks(self) -> list[tuple[int, int]]:
        """Returns (rows, bytes in memory) of each block."""
        if self._parquet is None:
            return [(batch.num_rows, batch.nbytes) for batch in self._batches]
        metadata = self._parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def block(self, number: int, columns: list[str]) -> Any:
        """Returns some columns of a block, as a table or record batch of pyarrow.

        Raises:
            DatasetFormatError: It is damaged.
        """
        import pyarrow

        try:
            if self._parquet is None:
                return self._batches[number].select(columns)
            return self._parquet.read_row_group(number, columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise DatasetFormatError(
                f"{self.path} is damaged in block {number}: {error}. Download it again."
            ) from error


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


OnSkipped = Callable[[str, str], None]
"""Takes (what it is in the source, why it is left out)."""


class Source(ABC):
    """Something that can be packed. The same source gives the same records in the same order."""

    kind: str
    """As an option names it."""
    sample_type: str
    """Name of the sample type of the dataset."""

    def __init__(self) -> None:
        self._fingerprint = Fingerprint()

    @abstractmethod
    def describe(self) -> list[str]:
        """Returns lines about what was found, for the terminal."""

    @abstractmethod
    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        """Yields what is to be packed, in the order of the source.

        Args:
            skipped: Called with everything that is left out.

        Raises:
            DatasetError: The source is damaged as a whole.
        """

    def fingerprint(self) -> str:
        """Returns what changes when a file of the source does; complete once `records` has ended."""
        return self._fingerprint.digest()

    @abstractmethod
    def reader(self) -> ReaderSpec:
        """Returns how records are read; picklable."""

    def dataset_config(self, part_names: Iterable[str]) -> dict[str, Any]:
        """Returns the content of `dataset.yaml`, given all parts that the shards have."""
        return make_dataset_config(self.sample_type, part_names)


class RecordReader:
    """Reads records. Keeps files open, so use one per shard.

    Args:
        spec: The source.
    """

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._folder = MediaFolder(spec.media_root, allow_outside=spec.allow_outside)
        self._open = functools.lru_cache(maxsize=64)(self._open_file)
        self._table = functools.lru_cache(maxsize=16)(lambda path: TableFile(f"{spec.root}/{path}"))
        self._block = functools.lru_cache(maxsize=1)(self._read_block)

    def read(self, record: Record) -> list[tuple[str, bytes]]:
        """Returns (name, content) of each part, sorted by name.

        Raises:
            SkipRecord: Something cannot be read, or is not what its name says.
            DatasetError: The source has changed since it was looked at.
        """
        parts = record.parts
        if record.row is not None:
            parts = self._row_parts(record.row)
        found: dict[str, bytes] = {}
        for part in parts:
            name, content = self._part(part)
            if name in found:
                raise SkipRecord(f"it has two parts {name!r}")
            self._check_text(name, content)
            found[name] = content
        return sorted(found.items())

    def _read_block(self, path: str, number: int) -> Any:
        assert self._spec.columns is not None, "rows come from a source with columns"
        return self._table(path).block(number, self._spec.columns.used)

    def _row_parts(self, row: Row) -> list[Part]:
        """Returns the parts of a row.

        Raises:
            SkipRecord: It lacks what its sample needs.
            DatasetFormatError: The file is damaged.
        """
        import pyarrow

        assert self._spec.columns is not None, "rows come from a source with columns"
        try:
            (values,) = self._block(row.path, row.block).slice(row.row, 1).to_pylist()
        except (UnicodeDecodeError, pyarrow.ArrowException) as error:
            raise SkipRecord(f"its row cannot be read: {error}") from None
        return row_to_parts(self._spec.columns, values, self._media_part)

    def _media_part(self, start: str, value: Any) -> Part:
        """Makes a part of an image: bytes, a path, or {bytes, path}."""
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if isinstance(content, str):
            content, path = None, content
        if isinstance(content, bytes) and content:
            suffix = guess_suffix(content) or suffix_of(path or "")
            if not media_kind(suffix):
                raise SkipRecord("its media are not recognised by their first bytes")
            return BytesPart(start + suffix, content)
        if isinstance(path, str) and path:
            relative, size = self._folder.look_at(path)
            return FilePart(start + (suffix_of(path) if media_kind(suffix_of(path)) else ""), relative, size)
        raise SkipRecord("it has neither bytes nor a path")

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
