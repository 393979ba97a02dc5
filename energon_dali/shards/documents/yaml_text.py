"""Reads YAML as plain values: nothing is executed, and depth, aliases and values have limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from energon_dali.errors import DatasetFormatError

MAX_DEPTH = 64
"""Levels of nesting in one file."""
_TOO_DEEP = f"values are nested in more than {MAX_DEPTH} levels. Use several files"
_PARSER_TOO_DEEP = "maximum nesting depth"
"""What libyaml says of about 1,000 levels, from PyYAML 6.0.4 on. It reads ahead, so that this comes before the events
of the first levels."""
MAX_VALUES = 1_000_000
"""Values in one file, with each alias counted as often as it is used."""

Keys = tuple[str | int, ...]
"""Path to a value: names in mappings and indices in lists."""

_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "map", "null", "seq", "str")
) | {"!"}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "yes": True,
    "false": False,
    "no": False,
}
_NUMBER_STARTS = frozenset("+-.0123456789")


def parse_yaml(content: bytes, file: str, lines: dict[Keys, int] | None = None) -> Any:
    """Parses a YAML document into dicts with string keys, lists, strings, numbers, bools and None.

    Plain scalars mean what they mean in Energon: null and ~ are None; true, yes, false and no (in any case) are bools;
    decimal numbers are numbers; everything else (on, off, dates, 0x1f, 1:30) is text. Aliases are resolved.

    Args:
        content: The file, in UTF-8.
        file: Its name, for messages.
        lines: Receives the line of every value, starting at 1.

    Raises:
        DatasetFormatError: It is not YAML, repeats a key, uses a merge key or a tag, or is too deep or too large.
    """
    known = _NOT_KEPT if lines is not None else _kept.get(content, _NOT_KEPT)
    if known is not _NOT_KEPT:
        return _copied(known)
    builder = _Builder(file, lines)
    try:
        # Events, not nodes: composing nodes recurses in C, and a deeply nested file would overflow the stack.
        builder.build(content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark and _PARSER_TOO_DEEP in text:
            raise DatasetFormatError(f"{file}:{error.problem_mark.line + 1}: {_TOO_DEEP}.") from error
        raise DatasetFormatError(f"{file} cannot be parsed: {text[:500]}. Correct it.") from error
    # A copy would have what an alias stands for as often as the alias is used.
    if lines is None and len(content) <= _MOST_KEPT_BYTES and b"&" not in content:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[content] = _copied(builder.result)
    return builder.result


_kept: dict[bytes, Any] = {}
"""The values of small documents: the datasets of a blend are often described in the same words."""
_NOT_KEPT: Any = object()
_MOST_KEPT = 256
_MOST_KEPT_BYTES = 2048


def _copied(value: Any) -> Any:
    """Returns a plain value with lists and dicts of its own."""
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if type(value) is list else value


@dataclass(slots=True, eq=False)
class _Open:
    """A mapping or list that is being read."""

    value: Any
    keys: Keys
    anchor: str | None
    first: int
    is_mapping: bool
    key: str | None = None
    key_line: int = 0


class _Builder:
    """Builds plain values from YAML events."""

    def __init__(self, file: str, lines: dict[Keys, int] | None) -> None:
        self.file = file
        self.lines = lines
        self.result: Any = None
        self._values = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}

    def build(self, text: str) -> None:
        """Reads all events.

        Raises:
            DatasetFormatError: One cannot be accepted.
            yaml.YAMLError: The text is not YAML.
        """
        scalar, mapping, sequence = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent
        ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        opened = self._open
        documents = 0
        events: Iterable[Any] = yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for event in events:
            kind = type(event)
            if kind is scalar:
                inner = opened[-1] if opened else None
                if inner is not None and inner.is_mapping and inner.key is None:
                    self._take_key(inner, event)
                else:
                    if event.tag is not None:
                        self._check_tag(event)
                    self._put(_scalar(event), event, event.anchor)
            elif kind is mapping:
                self._begin({}, event)
            elif kind is sequence:
                self._begin([], event)
            elif kind in ends:
                done = opened.pop()
                if done.anchor is not None:
                    self._anchors[done.anchor] = (done.value, self._values - done.first)
            elif kind is yaml.AliasEvent:
                self._take_alias(event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self._error(event, "a second document begins here. Write one document per file, without ---")

    def _take_key(self, mapping: _Open, event: Any) -> None:
        key = event.value
        if key in mapping.value:
            raise self._error(event, f"the key {key[:100]!r} is used a second time. Keep one of the two")
        if key == "<<" and event.style in (None, ""):
            raise self._error(event, "a merge key (<<) is not supported. Write the values out")
        mapping.key = key
        if self.lines is not None:
            mapping.key_line = event.start_mark.line + 1

    def _take_alias(self, event: Any) -> None:
        name = str(event.anchor)
        if name not in self._anchors:
            raise self._error(
                event, f"*{name[:100]} names nothing, or what it is itself a part of. Write the value out"
            )
        if self._awaits_key():
            raise self._error(event, f"*{name[:100]} is used as a key, which has to be text. Write the key out")
        value, size = self._anchors[name]
        self._values += size - 1
        self._put(value, event, None)

    def _awaits_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _begin(self, value: dict[str, Any] | list[Any], event: Any) -> None:
        if event.tag is not None:
            self._check_tag(event)
        if self._awaits_key():
            raise self._error(event, "a key is not text. Write text, such as `name: value`")
        if len(self._open) >= MAX_DEPTH:
            raise self._error(event, _TOO_DEEP)
        keys = self._put(value, event, None)
        self._open.append(_Open(value, keys, event.anchor, self._values - 1, isinstance(value, dict)))

    def _put(self, value: Any, event: Any, anchor: str | None) -> Keys:
        """Adds a value to its container, and returns the path to it if lines are recorded."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._error(
                event, f"the file holds more than {MAX_VALUES:,} values, aliases counted. Use several files"
            )
        if anchor is not None:
            self._anchors[anchor] = (value, 1)
        lines = self.lines
        line = 0 if lines is None else event.start_mark.line + 1
        keys: Keys = ()
        if not self._open:
            self.result = value
        else:
            outer = self._open[-1]
            if outer.is_mapping:
                if lines is not None:
                    keys = (*outer.keys, outer.key or "")
                    line = outer.key_line  # a list or mapping may begin after the line of its name
                outer.value[outer.key] = value
                outer.key = None
            else:
                if lines is not None:
                    keys = (*outer.keys, len(outer.value))
                outer.value.append(value)
        if lines is not None:
            lines[keys] = line
        return keys

    def _check_tag(self, event: Any) -> None:
        if event.tag not in _PLAIN_TAGS:
            raise self._error(event, f"the tag {event.tag[:100]} asks for more than plain values. Leave it out")

    def _error(self, event: Any, text: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.file}:{event.start_mark.line + 1}: {text}.")


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.style not in (None, "") or event.tag in _TEXT_TAGS:
        return text
    if text[:1] in _NUMBER_STARTS:
        try:
            return float(text) if "." in text or "e" in text or "E" in text else int(text)
        except ValueError:
            return text
    return _WORDS.get(text.lower(), text) if len(text) <= 5 else text


class _Dumper(yaml.SafeDumper):
    """Quotes all text that `parse_yaml` and Energon would not read as text, such as 09 and 1e3."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        plain = _scalar(yaml.ScalarEvent(None, None, (True, False), text))
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'" if plain is not text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def write_yaml(value: Any) -> bytes:
    """Formats plain values as YAML that `parse_yaml` reads back, in the order of the keys."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text.encode()
