"""The roles of a table's columns, and the parts that a row becomes."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.calls import describe_nearest
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.pack.files import MediaKind, media_kind, suffix_of
from energon_dali.pack.options import AUTO, NEEDS, PackOptions, choose_sample_type
from energon_dali.pack.record import JsonPart, Part, SkipRecord, TextPart
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.meta.dataset_config import CRUDE

_MEDIA_NAMES: dict[str, MediaKind] = {
    **dict.fromkeys(
        ("image", "images", "img", "image_path", "image_file", "img_path", "picture", "jpg", "png"), "image"
    ),
    **dict.fromkeys(("video", "videos", "video_path", "video_file", "clip", "mp4"), "video"),
    **dict.fromkeys(("audio", "audios", "audio_path", "audio_file", "wav", "mp3", "flac"), "audio"),
}
_TEXT_NAMES = {
    "caption": ("caption", "captions", "text", "txt", "title", "description", "sentence", "transcription", "prompt"),
    "question": ("question", "query", "questions"),
    "answers": ("answers", "answer", "response"),
    "label": ("label", "class", "cls", "category", "target", "fine_label", "coarse_label"),
}
_MEDIA_ROLES: tuple[MediaKind, ...] = ("image", "video", "audio")
_NOT_A_PART = re.compile(r"[^A-Za-z0-9_-]+")

MAX_COLUMNS = 10_000
"""Most columns of a table: each is looked at for media, and takes memory in each row."""

MakeMediaPart = Callable[[str, Any], Part]
"""Takes (start of the part's name, value of the column); returns the part. Raises SkipRecord."""


@dataclass(frozen=True, slots=True)
class MediaColumn:
    """A column of images, videos or audio."""

    column: str
    prefix: str
    """What part names begin with; "" for the first column of its kind."""
    kind: MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The role of each column. Picklable: rows of Parquet files are converted when they are packed."""

    sample_type: str
    media: tuple[MediaColumn, ...] = ()
    key: str | None = None
    caption: str | None = None
    question: str | None = None
    answers: str | None = None
    label: str | None = None
    label_names: tuple[str, ...] = ()
    """Names of the values of `label`, where those are numbers."""
    label_is_number: bool = False
    """Whether `label` holds numbers of classes, which become the part `cls`."""
    metadata: tuple[str, ...] = ()
    """Columns of the part `json`."""
    known: frozenset[str] | None = None
    """All columns that were found; others that a row has go into the part `json` too. None if a row has no others."""

    @property
    def used(self) -> list[str]:
        """Names of all columns that are read."""
        texts = (self.key, self.caption, self.question, self.answers, self.label)
        names = [*(media.column for media in self.media), *(name for name in texts if name), *self.metadata]
        return list(dict.fromkeys(names))

    def describe(self) -> str:
        """Returns a line about the columns, for the terminal."""
        shown = [f"{media.kind}={media.column}" for media in self.media]
        for role in ("key", "caption", "question", "answers", "label"):
            column = getattr(self, role)
            shown += [f"{role}={column}"] if column else []
        rest = ", ".join(self.metadata)
        return f"Columns: {', '.join(shown) or 'none with media'}" + (f"; in the part json: {rest}" if rest else "")


def too_many_columns(table: str, count: int) -> str:
    """Returns the message for a table with more than MAX_COLUMNS columns."""
    return (
        f"{table} has {count:,} columns, and at most {MAX_COLUMNS:,} are allowed. Write a table with the columns that "
        "the samples need."
    )


def find_columns(
    names: Sequence[str],
    options: PackOptions,
    *,
    kinds: Mapping[str, MediaKind] | None = None,
    examples: Iterable[Mapping[str, Any]] = (),
    label_names: Mapping[str, Sequence[str]] | None = None,
    integers: Iterable[str] = (),
    unusable: Iterable[str] = (),
    lists: Iterable[str] = (),
) -> Columns:
    """Returns the role of each column: as the user says, then by its type, its name, and its first values.

    Args:
        names: The columns.
        options: What the user says.
        kinds: Columns that are known to be media.
        examples: Some rows, in which paths of media are looked for.
        label_names: Names of classes, by column.
        integers: Columns that are known to hold whole numbers.
        unusable: Columns that have no form in JSON.
        lists: Columns that are known to hold lists.

    Raises:
        ConfigError: The user names a column that does not exist, or a sample type that has one image, for lists.
        DatasetFormatError: There are too many.
    """
    if len(names) > MAX_COLUMNS:
        raise DatasetFormatError(too_many_columns("The table", len(names)))
    for column in (*options.columns.values(), *(options.metadata or ())):
        if column not in names:
            raise ConfigError(f"There is no column {column!r}. {describe_nearest(column, names)}")
    chosen, rows = dict(options.columns), list(examples)
    media = _media_columns(names, chosen, dict(kinds or {}), rows)
    taken = {column.column for column in media} | set(chosen.values())
    texts = {}
    for role, known in _TEXT_NAMES.items():
        candidates = [name for word in known for name in names if name.lower() == word and name not in taken]
        texts[role] = chosen.get(role) or next(iter(candidates), None)
        taken.update(candidates[:1])
    if texts["question"] is None and "answers" not in chosen:
        texts["answers"] = None
    roles = {column.kind for column in media} | {role for role, column in texts.items() if column}
    sample_type = choose_sample_type(roles, options.sample_type)
    known_lists = {*lists, *(name for row in rows for name, value in row.items() if isinstance(value, list))}
    needed = [one for one in media if not one.prefix and one.kind in NEEDS[sample_type]]
    several = next((one for one in needed if one.column in known_lists), None)
    if several is not None and options.sample_type != AUTO:
        raise ConfigError(
            f"{sample_type} has one {several.kind}, and the column {several.column!r} holds lists. Choose "
            f"--sample-type {CRUDE}, or name another column with --columns {several.kind}=COLUMN."
        )
    if several is not None:
        sample_type = CRUDE
    label = texts["label"]
    metadata: Sequence[str] = options.metadata if options.metadata is not None else names
    known_media = {column.column for column in media}
    left_out = known_media | set(unusable)
    return Columns(
        sample_type=sample_type,
        media=tuple(media),
        key=chosen.get("key"),
        caption=texts["caption"],
        question=texts["question"],
        answers=texts["answers"],
        label=label,
        label_names=tuple((label_names or {}).get(label or "", ())),
        label_is_number=label is not None
        and (label in integers or (bool(rows) and all(_as_index(row.get(label)) is not None for row in rows))),
        metadata=tuple(name for name in metadata if name not in left_out),
    )


def _media_columns(
    names: Sequence[str],
    chosen: Mapping[str, str],
    kinds: Mapping[str, MediaKind],
    examples: Sequence[Mapping[str, Any]],
) -> list[MediaColumn]:
    found: list[tuple[str, MediaKind]] = [(chosen[role], role) for role in _MEDIA_ROLES if role in chosen]
    others = [name for name in names if name not in chosen.values()]
    found += [(name, kinds[name]) for name in others if name in kinds]
    for name in others:
        if name in kinds:
            continue
        kind = _kind_of_values(row.get(name) for row in examples)
        if kind is not None:
            found.append((name, kind))
    if not found:  # paths without the suffix of a medium
        found = [(name, _MEDIA_NAMES[name.lower()]) for name in others if name.lower() in _MEDIA_NAMES and examples][:1]
    columns: list[MediaColumn] = []
    for name, kind in found:
        first = all(column.kind != kind for column in columns)
        columns.append(MediaColumn(name, "" if first else _NOT_A_PART.sub("_", name).strip("_") or "media", kind))
    return columns


def _kind_of_values(values: Iterable[Any]) -> MediaKind | None:
    """Returns what most of some paths are; None if most values are not paths of media."""
    kinds: list[MediaKind | None] = []
    for value in values:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item:
                is_path = len(item) < 4096 and "\n" not in item
                kinds.append(media_kind(suffix_of(item)) if is_path else None)
    best = max(set(kinds), key=kinds.count, default=None)
    return best if best is not None and kinds.count(best) * 2 > len(kinds) else None


def row_to_parts(columns: Columns, row: Mapping[str, Any], media_part: MakeMediaPart) -> list[Part]:
    """Returns the parts that a row becomes.

    Args:
        columns: Which column is what.
        row: Value of each column.
        media_part: Makes a part of a value of a media column.

    Raises:
        SkipRecord: The row lacks what its sample type needs, or a file is missing.
    """
    needed = NEEDS[columns.sample_type]
    parts: list[Part] = []
    for media in columns.media:
        value = row.get(media.column)
        if _is_empty(value, media.column, not media.prefix and media.kind in needed):
            continue
        if isinstance(value, list):
            start = f"{media.prefix}." if media.prefix else ""
            parts += [media_part(f"{start}{index}.", item) for index, item in enumerate(value)]
        else:
            parts.append(media_part(f"{media.prefix}." if media.prefix else "", value))
    parts += _text_parts(columns, row, needed)
    if not parts:
        raise SkipRecord("it is empty")
    return parts


def _is_empty(value: Any, column: str, is_needed: bool) -> bool:
    """Returns whether a value of a column is empty.

    Raises:
        SkipRecord: It is, and the sample needs it.
    """
    found = value is None or value == "" or value == []
    if found and is_needed:
        raise SkipRecord(f"the column {column!r} is empty")
    return found


def _text_parts(columns: Columns, row: Mapping[str, Any], needed: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    names: Iterable[str] = columns.metadata
    if columns.known is not None:
        names = (*names, *(name for name in row if name not in columns.known))
    document = {name: _plain(row[name]) for name in names if row.get(name) is not None}
    if columns.caption is not None:
        text = as_text(row.get(columns.caption))
        if not _is_empty(text, columns.caption, "caption" in needed):
            parts.append(TextPart("txt", text))
    if columns.question is not None:
        document["question"] = as_text(row.get(columns.question))
        _is_empty(document["question"], columns.question, "question" in needed)
        document["answers"] = _as_list(row.get(columns.answers)) if columns.answers else []
    if columns.label is not None:
        label = row.get(columns.label)
        if not _is_empty(label, columns.label, "label" in needed):
            number = _as_index(label) if columns.label_is_number else None
            if columns.label_is_number and number is None:
                raise SkipRecord(
                    f"the column {columns.label!r} holds {excerpt(label)}, which is not a number of a class"
                )
            if number is not None:
                parts.append(TextPart("cls", str(number)))
            is_named = number is not None and number < len(columns.label_names)
            document["label_name"] = columns.label_names[number] if is_named and number is not None else as_text(label)
    if document:
        parts.append(JsonPart("json", document))
    return parts


def as_text(value: Any) -> str:
    """Returns a value as text; of a list, the first one."""
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or isinstance(value, (dict, bytes)):
        return ""
    text = str(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise SkipRecord("its text is not UTF-8")
    return text


def _as_list(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [] if value is None or value == "" else [value]
    texts = [
        as_text(item.get("answer", item.get("text"))) if isinstance(item, dict) else as_text(item) for item in items
    ]
    return [text for text in texts if text]


def _as_index(value: Any) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if value >= 0 else None
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else None


def _plain(value: Any) -> Any:
    """Returns a value as values of JSON."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {as_text(name): _plain(item) for name, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    return None
