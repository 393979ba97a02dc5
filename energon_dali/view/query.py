"""What a page was asked for: split, shard, conditions, page number; from an address and back to one, and as SQL."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias
from urllib.parse import urlencode

from energon_dali.view.plain_fields import Plain

PAGE_SIZES = (10, 24, 48, 96)
DEFAULT_PAGE_SIZE = 48
MAX_NUMBER = 1 << 53
_MAX_TEXT = 1000
_MAX_FIELD_TEXT = 16_000
Ranges: TypeAlias = Sequence[tuple[int, int]] | None
"""(start, stop) of the samples to look at, such as those of a split; None is all."""
_PHRASE = re.compile(r'"([^"]*)"|(\S+)')
MAX_PHRASES = 32
"""Words and phrases of one search."""


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """Conditions that a sample has to meet, all of them; None and empty values mean no condition.

    Conditions on parts (format, width, height, aspect ratio, duration, mode, text length, duplicates) have to be met by
    one and the same part. Bounds are inclusive.
    """

    text: str = ""
    """Words of its text and JSON parts, all of them; "quoted words" follow each other, and wor* is a beginning."""
    key: str = ""
    """Part of its key."""
    fails: bool | None = None
    """Whether it fails to decode."""
    reason: str = ""
    """Part of the reason why it fails."""
    field: str = ""
    """Values of its JSON, `name=value`, all of them; AND is between several. Either may be quoted as a JSON string."""
    part: str = ""
    """Name of the part, such as "jpg"."""
    kind: str = ""
    """"image", "video", "audio", "text", "json" or "other"."""
    format: str = ""
    """Format of an image, codec of a video or audio, suffix of anything else."""
    mode: str = ""
    """Colour mode of an image, pixel format of a video, channel layout of audio."""
    min_width: int | None = None
    """Width in pixels."""
    max_width: int | None = None
    """Width in pixels."""
    min_height: int | None = None
    """Height in pixels."""
    max_height: int | None = None
    """Height in pixels."""
    min_aspect: float | None = None
    """Width divided by height."""
    max_aspect: float | None = None
    """Width divided by height."""
    min_duration: float | None = None
    """Duration in seconds."""
    max_duration: float | None = None
    """Duration in seconds."""
    min_text_length: int | None = None
    """Characters of a text part, or of all strings of a JSON part."""
    max_text_length: int | None = None
    """Characters of a text part, or of all strings of a JSON part."""
    min_bytes: int | None = None
    """Size of all parts together in bytes."""
    max_bytes: int | None = None
    """Size of all parts together in bytes."""
    duplicates: bool | None = None
    """Whether another part of the dataset has the same content."""
    same_as: bytes | None = None
    """Digest of the content of one of its parts."""

    @property
    def is_empty(self) -> bool:
        """Whether every sample meets it."""
        return self == SampleFilter()

    def conditions(self) -> tuple[str, list[Any]]:
        """Returns (a condition on the tables `samples AS s` and `parts`, its parameters)."""
        sample: list[tuple[str, Any]] = [
            ("s.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", match_expression(self.text) or None),
            ("instr(s.key, ?) > 0", self.key or None),
            ("s.fails = ?", self.fails),
            ("s.id IN (SELECT sample FROM failures WHERE instr(reason, ?) > 0)", self.reason or None),
            *((_FIELD, pair) for pair in field_pairs(self.field)),
            ("s.bytes >= ?", self.min_bytes),
            ("s.bytes <= ?", self.max_bytes),
        ]
        repeated = "(SELECT digest FROM parts WHERE digest IS NOT NULL GROUP BY digest HAVING count(*) > 1)"
        part: list[tuple[str, Any]] = [
            ("p.name = ?", self.part or None),
            ("p.kind = ?", self.kind or None),
            ("p.format = ?", self.format or None),
            ("p.mode = ?", self.mode or None),
            ("p.width >= ?", self.min_width),
            ("p.width <= ?", self.max_width),
            ("p.height >= ?", self.min_height),
            ("p.height <= ?", self.max_height),
            ("p.width >= ? * p.height", self.min_aspect),
            ("p.width <= ? * p.height", self.max_aspect),
            ("p.duration >= ?", self.min_duration),
            ("p.duration <= ?", self.max_duration),
            ("p.text_length >= ?", self.min_text_length),
            ("p.text_length <= ?", self.max_text_length),
            ("p.digest = ?", self.same_as),
            (f"(p.digest IS NOT NULL AND p.digest IN {repeated}) = ?", self.duplicates),
        ]
        condition, values = _joined(sample)
        of_part, more = _joined(part)
        if more:
            condition += f" AND EXISTS (SELECT 1 FROM parts p WHERE p.sample = s.id AND {of_part})"
        return condition, [*values, *more]


@dataclass(frozen=True, slots=True)
class GridQuery:
    """What a grid shows."""

    split: str = ""
    """Part of the split; "" takes all samples."""
    shard: str = ""
    """Part of the path of the shards."""
    wanted: SampleFilter = field(default_factory=SampleFilter)
    """Conditions on samples."""
    page: int = 1
    """Number of the page, from 1."""
    page_size: int = DEFAULT_PAGE_SIZE
    """Samples of a page."""
    sort: str = ""
    """Fact by which samples are sorted, as `sort_keys` names it, after a hyphen for the largest first; "" does not."""
    tag: str = ""
    """Tag that the samples have; "" takes all."""
    chosen: bool = False
    """Whether only samples are shown that the user chose."""
    view: str = ""
    """"table" shows the fields of JSON parts; "" shows cards."""

    @property
    def start(self) -> int:
        """Position of the first sample of the page."""
        return (self.page - 1) * self.page_size

    def with_field(self, name: str, value: Plain) -> GridQuery:
        """Returns the first page of those that have a value of a field as well."""
        pairs = [*field_pairs(self.wanted.field), (name, str(value), value)]
        text = AND.join(dict.fromkeys(_written_pair(*pair) for pair in pairs))
        return replace(self, page=1, wanted=replace(self.wanted, field=text))

    def fields(self) -> dict[str, str]:
        """Returns the conditions as an address has them; what is not given is left out."""
        values: dict[str, Any] = {"split": self.split, "shard": self.shard}
        values |= {name: getattr(self.wanted, name) for name in FILTER_FIELDS}
        values |= {"tag": self.tag, "chosen": self.chosen or None, "sort": self.sort}
        found = {name: _written(value) for name, value in values.items() if value not in (None, "")}
        if self.page_size != DEFAULT_PAGE_SIZE:
            found["size"] = str(self.page_size)
        if self.view:
            found["view"] = self.view
        return found

    def address(self, **changes: Any) -> str:
        """Returns the query of an address that asks for this, "" if it asks for nothing.

        Args:
            **changes: Further fields, such as page or position; None leaves one out.
        """
        pairs: dict[str, str] = self.fields()
        if self.page > 1:
            pairs["page"] = str(self.page)
        for name, value in changes.items():
            pairs.pop(name, None)
            if value is not None:
                pairs[name] = str(value)
        return f"?{urlencode(pairs)}" if pairs else ""

    def on_page(self, page: int) -> GridQuery:
        """Returns the same for another page."""
        return replace(self, page=page)


FILTER_FIELDS = {one.name: str(one.type) for one in fields(SampleFilter)}
"""The conditions that an address may hold, and their types."""


def read_query(given: Mapping[str, str]) -> tuple[GridQuery, list[str]]:
    """Returns (what an address asks for, what of it could not be understood).

    Args:
        given: The fields of the address.
    """
    wrong: list[str] = []
    values: dict[str, Any] = {}
    for name, kind in FILTER_FIELDS.items():
        text = given.get(name, "").strip()[: _MAX_FIELD_TEXT if name == "field" else _MAX_TEXT]
        if not text:
            continue
        try:
            values[name] = _parsed(text, kind)
        except ValueError:
            wrong.append(f"{_label(name)} is {text[:50]!r}, which cannot be understood.")
    page, size = _whole(given.get("page")) or 1, _whole(given.get("size"))
    query = GridQuery(
        given.get("split", "")[:_MAX_TEXT],
        given.get("shard", "").strip()[:_MAX_TEXT],
        SampleFilter(**values),
        max(1, page),
        size if size in PAGE_SIZES else DEFAULT_PAGE_SIZE,
        given.get("sort", "").strip()[:_MAX_TEXT],
        given.get("tag", "").strip()[:_MAX_TEXT],
        given.get("chosen", "") == "1",
        "table" if given.get("view") == "table" else "",
    )
    return query, wrong


def describe(query: GridQuery) -> Iterable[tuple[str, str]]:
    """Yields (name, value) of each condition, for people."""
    for name, value in query.fields().items():
        if name not in ("size", "view", "sort"):
            kind = FILTER_FIELDS.get(name, "")
            is_set = value == "1" and (kind.startswith("bool") or name == "chosen")
            yield _label(name), "" if is_set else f"{float(value):g}" if kind.startswith("float") else value


def _label(name: str) -> str:
    return name.replace("min_", "least ").replace("max_", "most ").replace("_", " ")


def _parsed(text: str, kind: str) -> Any:
    if kind.startswith("bool"):
        return {"1": True, "0": False}.get(text)
    if kind.startswith("bytes"):
        return bytes.fromhex(text)
    if kind.startswith("int"):
        number = int(text)
        if abs(number) > MAX_NUMBER:
            raise ValueError(text)
        return number
    if kind.startswith("float"):
        real = float(text)
        if not math.isfinite(real):
            raise ValueError(text)
        return real
    return text


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, bytes):
        return value.hex()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _whole(text: str | None) -> int | None:
    try:
        number: int = _parsed(text or "", "int")
    except ValueError:
        return None
    return number


def _joined(terms: Sequence[tuple[str, Any]]) -> tuple[str, list[Any]]:
    """Returns (the terms that have a value, all of which have to be met; their values)."""
    given = [(term, value) for term, value in terms if value is not None]
    values = [one for _, value in given for one in (value if isinstance(value, tuple) else (_fits(value),))]
    return " AND ".join(term for term, _ in given) or "1", values


_FIELD = "s.id IN (SELECT sample FROM fields WHERE name = ? AND value IN (?, ?))"
MAX_PAIRS = 16
"""Fields of one search."""
AND = " AND "
"""What is between two fields of a search."""


def field_pairs(text: str) -> list[tuple[str, str, Plain]]:
    """Returns (name, value, value as a number if it is one) of each `name=value` of a text.

    Args:
        text: As the user wrote it; without =, it is the name of a field that is to be true. A name or a value may be
            quoted as a JSON string, and may hold anything then; a quoted value is no number.
    """
    pairs: list[tuple[str, str, Plain]] = []
    for _ in range(MAX_PAIRS):
        name, name_is_quoted, end, text = _cut(text, f"=|{AND}")
        value, is_quoted = "true", False
        if end == "=":
            value, is_quoted, end, text = _cut(text, AND)
        if name or name_is_quoted:
            pairs.append((name, value, value if is_quoted else _as_number(value)))
        if not end:
            break
    return pairs


def _cut(text: str, end: str) -> tuple[str, bool, str, str]:
    """Returns (what is before an end, without quotes; whether it had some; the end, "" at that of the text; the rest).

    Args:
        text: The text.
        end: The end as a regular expression.
    """
    quoted = re.match(rf'\s*("(?:[^"\\]|\\.)*")\s*?({end}|\Z)', text, re.DOTALL)
    if quoted:
        with suppress(ValueError):  # it only looks like JSON
            found = json.loads(quoted[1], strict=False).encode("utf-8", "replace").decode()  # no halves of letters
            return found, True, quoted[2], text[quoted.end() :]
    plain = re.search(rf"{end}|\Z", text)
    assert plain is not None, "every text has an end"
    return text[: plain.start()].strip(), False, plain[0], text[plain.end() :]


def _as_number(text: str) -> Plain:
    for read in (int, float):  # an integer above 2^53 is not a float
        with suppress(ValueError, OverflowError):
            number: float = _fits(read(text))
            return number
    return text


def _written_pair(name: str, text: str, value: Plain) -> str:
    """Returns a condition of which `field_pairs` reads the same, also between others."""
    if not _is_plain(name) or field_pairs(f"{name}=x") != [(name, "x", "x")]:
        name = json.dumps(name, ensure_ascii=False)
    if isinstance(value, str) and not (
        _is_plain(text) and field_pairs(f"x={text}{AND}x") == [("x", text, text), ("x", "true", "true")]
    ):
        text = json.dumps(text, ensure_ascii=False)
    return f"{name}={text}"


def _is_plain(text: str) -> bool:
    return text.isprintable() and '"' not in text  # a field of a form has no line breaks


def _fits(value: Any) -> Any:
    """Returns a number as SQLite can compare it: it takes integers of 64 bits."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def match_expression(text: str) -> str:
    """Returns an expression of FTS5 that finds all words and quoted phrases of a text; nothing in it is an operator.

    Args:
        text: As the user wrote it: words, "phrases", and beginnings of words with a star at the end.
    """
    phrases = []
    for quoted, word in _PHRASE.findall(text.replace("\0", " "))[:MAX_PHRASES]:
        plain = quoted or word.rstrip("*").replace('"', "")
        if plain.strip():
            phrases.append(f'"{plain}"' + ("*" if word.endswith("*") else ""))
    return " ".join(phrases) or ('""' if text.strip() else "")
