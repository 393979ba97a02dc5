"""A CSV, TSV, JSON or JSONL file whose rows name files; rows that are damaged are left out.

Rows may be conversations about images, as LLaVA stores them: a list of {id, image, conversations: [{from, value}]}.
"""

from __future__ import annotations

import csv
import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TextIO

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.pack.columns import MAX_COLUMNS, find_columns, row_to_parts, too_many_columns
from energon_dali.pack.files import MediaFolder, media_kind, suffix_of
from energon_dali.pack.options import AUTO, PackOptions
from energon_dali.pack.reading import OnSkipped, ReaderSpec, Source
from energon_dali.pack.record import FilePart, JsonPart, Part, Record, SkipRecord, json_bytes, key_of, numbered_key
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.meta.dataset_config import CRUDE

MAX_FIELD_BYTES = 16 << 20
"""Largest field of a CSV file, and largest line of a JSONL file is four times this."""
TABLE_SUFFIXES = frozenset({"csv", "tsv", "jsonl", "json", "ndjson"})
EXAMPLES = 100
_DELIMITERS = {"csv": ",", "tsv": "\t"}
TURNS = ("conversations", "messages", "conversation")
"""Fields that hold the turns."""
_MEDIA = (("image", ""), ("images", ""), ("video", ""), ("videos", "video."), ("audio", ""), ("audios", "audio."))
"""Fields that name files, and what their parts begin with if there are several."""
_SPEAKERS = {"human": "question", "user": "question", "gpt": "answer", "assistant": "answer", "system": "system"}
_PLACEHOLDERS = ("<image>", "<video>")

NumberedRow = tuple[str, dict[str, Any]]
"""(Where it is, such as "line 3"; the row.)"""


class RowSource(Source):
    """A table whose rows name files.

    Args:
        path: Absolute path of the table.
        options: What the user chose.
    """

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__()
        self.path = path
        self.key_column = options.columns.get("key")
        self._media_root = os.path.abspath(options.media_root or os.path.dirname(path))
        self._allow_outside = options.allow_outside
        self._files = MediaFolder(self._media_root, allow_outside=options.allow_outside, fingerprint=self._fingerprint)

    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        self._fingerprint.add_file(self.path)
        for number, (where, row) in enumerate(read_rows(self.path, skipped)):
            try:
                record = Record(self._key(row, number), self._parts(row))
            except SkipRecord as error:
                skipped(where, str(error))
            else:
                yield record

    def _key(self, row: dict[str, Any], number: int) -> str:
        """Returns the key of a row: from its key column, or its number.

        Raises:
            SkipRecord: The column is empty.
        """
        if self.key_column is None:
            return numbered_key(number)
        key = key_of(row.get(self.key_column))
        if key is None:
            raise SkipRecord(f"the column {self.key_column!r} holds no key")
        return key

    @abstractmethod
    def _parts(self, row: dict[str, Any]) -> list[Part]:
        """Returns the parts that a row makes.

        Raises:
            SkipRecord: It cannot be packed.
        """

    def _look_up(self, start: str, value: Any) -> Part:
        """Returns the part of a file that a row names.

        Args:
            start: What the part's name begins with.
            value: The path.

        Raises:
            SkipRecord: It is not a path, or there is no such file.
        """
        if not isinstance(value, str) or not value:
            raise SkipRecord(f"{value!r:.100} is not the path of a file")
        suffix = suffix_of(value)
        return FilePart(start + (suffix if media_kind(suffix) else ""), *self._files.look_at(value))

    def reader(self) -> ReaderSpec:
        return ReaderSpec(self._media_root, self._media_root, self._allow_outside)


class TableSource(RowSource):
    """A table whose rows name files.

    Args:
        path: Absolute path of the table.
        options: What the user chose.

    Raises:
        ConfigError: A column does not exist.
        DatasetFormatError: The table cannot be understood.
        StorageError: It cannot be opened.
    """

    kind = "table"

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__(path, options)
        examples = first_rows(path)
        names = dict.fromkeys(name for row in examples for name in row)
        if not names.keys() >= {*options.columns.values(), *(options.metadata or ())}:  # perhaps later rows have them
            names |= dict.fromkeys(name for _, row in read_rows(path, lambda *_: None) for name in row)
        self.columns = find_columns(list(names), options, examples=examples)
        if options.metadata is None:
            self.columns = replace(self.columns, known=frozenset(names))
        self.sample_type = self.columns.sample_type

    def describe(self) -> list[str]:
        return [self.columns.describe(), f"Paths are relative to {self._media_root}"]

    def _parts(self, row: dict[str, Any]) -> list[Part]:
        return row_to_parts(self.columns, row, self._look_up)


def is_conversation(row: Mapping[str, Any]) -> bool:
    """Returns whether a row holds turns of a conversation."""
    return any(isinstance(row.get(name), list) for name in TURNS)


class ConversationSource(RowSource):
    """A JSON or JSONL file of conversations.

    Args:
        path: Absolute path of the file.
        options: What the user chose.

    Raises:
        ConfigError: The sample type does not fit conversations.
        DatasetFormatError: The file cannot be understood.
        StorageError: It cannot be opened.
    """

    kind = "conversations"

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__(path, options)
        chosen = {role: options.columns[role] for role in ("image", "video", "audio") if role in options.columns}
        self._fields = {**{field: field for field, _ in _MEDIA}, **chosen}
        self.sample_type = CRUDE if options.sample_type == AUTO else options.sample_type
        if self.sample_type not in (CRUDE, "VQASample"):
            raise ConfigError(
                f"Conversations become {CRUDE}, or VQASample if each has one question and one answer; "
                f"{self.sample_type} was given."
            )
        first_rows(path)

    def describe(self) -> list[str]:
        return [f"Paths are relative to {self._media_root}"]

    def _parts(self, row: dict[str, Any]) -> list[Part]:
        if not is_conversation(row):
            raise SkipRecord(f"it has none of the lists {', '.join(TURNS)}")
        document = self._document(row)
        try:
            json_bytes(document)
        except ValueError:
            raise SkipRecord("its text is not UTF-8") from None
        return [*self._media(row), JsonPart("json", document)]

    def _media(self, row: dict[str, Any]) -> list[Part]:
        parts: list[Part] = []
        for field, start in _MEDIA:
            value = row.get(self._fields[field])
            if value is None or value == "" or value == []:
                continue
            if isinstance(value, list):
                for index, item in enumerate(value):
                    # Some programs write {"image": {"path": ...}}, others the path alone.
                    path = item.get("path") if isinstance(item, dict) else item
                    parts.append(self._look_up(f"{start}{index}.", path))
            else:
                parts.append(self._look_up("", value))
        if self.sample_type == "VQASample" and len(parts) != 1:
            raise SkipRecord(f"it has {len(parts)} files, and a VQASample has one image")
        return parts

    def _document(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the part `json`: the whole row, and for VQASample also the question and the answers."""
        if self.sample_type == CRUDE:
            return row
        turns = next(row[name] for name in TURNS if isinstance(row.get(name), list))
        said: dict[str, list[str]] = {"question": [], "answer": [], "system": []}
        for turn in turns:
            speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
            text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
            if speaker not in _SPEAKERS or not isinstance(text, str):
                raise SkipRecord("a turn is not {from: human or gpt, value: text}")
            said[_SPEAKERS[speaker]].append(text)
        if len(said["question"]) != 1 or len(said["answer"]) != 1:
            raise SkipRecord("it does not have exactly one question and one answer, which a VQASample needs")
        question = said["question"][0]
        for placeholder in _PLACEHOLDERS:
            question = question.replace(placeholder, "")
        return {**row, "question": question.strip(), "answers": said["answer"]}


def read_rows(path: str, skipped: OnSkipped) -> Iterator[NumberedRow]:
    """Yields the rows of a table.

    Args:
        path: A .csv, .tsv, .jsonl, .ndjson or .json file.
        skipped: Called with each row that cannot be read.

    Raises:
        DatasetFormatError: The file cannot be understood as a whole.
        StorageError: It cannot be opened.
    """
    suffix = suffix_of(path)
    read: Callable[[str, OnSkipped], Iterator[NumberedRow]] = _read_csv
    if suffix == "json":
        read = _read_json
    elif suffix in ("jsonl", "ndjson"):
        read = _read_jsonl
    try:
        yield from read(path, skipped)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error


def first_rows(path: str) -> list[dict[str, Any]]:
    """Returns the first rows of a table.

    Raises:
        DatasetFormatError: The file cannot be understood, or has no row.
        StorageError: It cannot be opened.
    """
    reasons: list[str] = []
    rows = list(itertools.islice(read_rows(path, lambda what, why: reasons.append(f"{what}: {why}")), EXAMPLES))
    if not rows:
        why = f" {reasons[0]}." if reasons else ""
        raise DatasetFormatError(f"{path} has no row that can be read.{why} Write one line for each sample.")
    return [row for _, row in rows]


def _read_csv(path: str, skipped: OnSkipped) -> Iterator[NumberedRow]:
    limit = csv.field_size_limit(MAX_FIELD_BYTES)
    try:
        # Bytes that are not UTF-8 become surrogates: they may be part of the name of a file.
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            yield from _csv_rows(path, file, skipped)
    finally:
        csv.field_size_limit(limit)


def _csv_rows(path: str, file: TextIO, skipped: OnSkipped) -> Iterator[NumberedRow]:
    reader = csv.reader(file, delimiter=_DELIMITERS[suffix_of(path)])
    header: list[str] | None = None
    try:
        for row in reader:
            if header is None:
                header = [name.strip() for name in row]
                if len(header) > MAX_COLUMNS:
                    raise DatasetFormatError(too_many_columns(path, len(header)))
                if len(set(header)) < len(header):
                    raise DatasetFormatError(
                        f"{path} has two columns with the same name: {excerpt(header)}. Rename one."
                    )
            elif len(row) == len(header):
                yield f"line {reader.line_num}", dict(zip(header, row, strict=True))
            elif row:
                skipped(f"line {reader.line_num}", f"it has {len(row)} fields, and the header has {len(header)}")
    except csv.Error as error:
        raise DatasetFormatError(
            f"{path} cannot be read at line {reader.line_num}: {error}. Fields may have {MAX_FIELD_BYTES:,} "
            "characters; look for a quotation mark that is not closed."
        ) from error


def _read_jsonl(path: str, skipped: OnSkipped) -> Iterator[NumberedRow]:
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(4 * MAX_FIELD_BYTES):
            number += 1
            if not line.endswith(b"\n") and len(line) >= 4 * MAX_FIELD_BYTES:
                raise DatasetFormatError(
                    f"{path} has more than {len(line):,} bytes in line {number}. JSONL has one sample per line; name a "
                    "file that holds one list .json."
                )
            if not line.strip():
                continue
            row = _parse(line, f"line {number}", skipped)
            if row is not None:
                yield f"line {number}", row


def _parse(line: bytes, what: str, skipped: OnSkipped) -> dict[str, Any] | None:
    try:
        row = parse_json(line.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        skipped(what, f"it is not JSON: {excerpt(str(error))}")
        return None
    if not isinstance(row, dict):
        skipped(what, f"it holds {excerpt(row)}, and should hold an object: {{...}}")
        return None
    return row


def _read_json(path: str, skipped: OnSkipped) -> Iterator[NumberedRow]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        rows = parse_json(content.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise DatasetFormatError(
            f"{path} is not JSON: {excerpt(str(error))}. If it has one object per line, name it .jsonl."
        ) from error
    if not isinstance(rows, list):
        raise DatasetFormatError(f"{path} holds {excerpt(rows)}, and should hold a list of objects: [{{...}}, ...].")
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            yield f"entry {number}", row
        else:
            skipped(f"entry {number}", f"it is {excerpt(row)}, and should be an object: {{...}}")
