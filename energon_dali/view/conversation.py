"""Conversations in JSON: who says what, with the images, videos and audio of the sample in their places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from energon_dali.view.viewed_sample import ViewedPart

MAX_TURNS = 1000
"""Turns of one conversation that are shown as such; the JSON has all of them."""
_LISTS = ("conversations", "messages", "conversation", "dialog", "dialogue", "turns", "texts", "chat")
_SPEAKERS = ("role", "from", "speaker", "sender")
_CONTENTS = ("content", "value", "text")
_SIDES = {
    "user": "user",
    "human": "user",
    "question": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "answer": "assistant",
    "system": "system",
}
_PLACEHOLDER = re.compile(r"<\|?(image|img|video|audio|sound)(?:_pad|_placeholder)?[ _-]?(\d{0,4})\|?>", re.IGNORECASE)
_MEDIA = {"image": "image", "img": "image", "image_url": "image", "video": "video", "audio": "audio", "sound": "audio"}
_AUDIO_SUFFIXES = frozenset(("aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"))


@dataclass(frozen=True, slots=True)
class Piece:
    """A text, or a part of the sample in its place."""

    text: str = ""
    """The text; of a part, what the conversation calls it."""
    part: ViewedPart | None = None
    """The part; None if it is text."""
    is_missing: bool = False
    """Whether it names a part that the sample does not have."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one speaker says."""

    speaker: str
    """The speaker as the file says."""
    side: Literal["user", "assistant", "system", "other"]
    """Who that is."""
    pieces: tuple[Piece, ...]
    """What is said, in order."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation."""

    name: str
    """The field of the JSON that has it; "" if it is all of it."""
    turns: tuple[Turn, ...]
    """The turns, in order."""
    num_turns: int
    """Number of turns; more than `turns` has if there are many."""


def find_conversation(value: Any, parts: Sequence[ViewedPart]) -> Conversation | None:
    """Returns the conversation in a JSON value; None if there is none.

    It is a list of turns with a speaker and a content (`role` and `content`, `from` and `value`, and similar names), or
    with `user` and `assistant`, alone or in a field such as `messages`. A content is a text, or a list of texts and
    media. `<image>` in a text takes the next image of the sample, and `<image_2>` the one of that number.

    Args:
        value: The JSON value.
        parts: The parts of the sample, in the order of the shard.
    """
    for name in ("", *_LISTS):
        turns = value if not name else value.get(name) if isinstance(value, dict) else None
        if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
            said = [_said(turn) for turn in turns[:MAX_TURNS]]
            if all(said):
                media = _Media(parts, [content for pairs in said for _, content in pairs])
                found = tuple(
                    Turn(speaker, _SIDES.get(speaker.lower(), "other"), tuple(_pieces(content, media)))  # type: ignore[arg-type]
                    for pairs in said
                    for speaker, content in pairs
                )
                return Conversation(name, found, len(turns))
    return None


def _said(turn: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns (speaker, content) of a turn; two of a pair of question and answer, none if it is not one."""
    speaker = next((turn[name] for name in _SPEAKERS if isinstance(turn.get(name), str)), None)
    if speaker is not None:
        content = next((turn[name] for name in _CONTENTS if isinstance(turn.get(name), (str, list))), None)
        content = turn.get("tool_calls") if content is None else content
        if content is None and any(name in turn and turn[name] is None for name in _CONTENTS):
            content = ""  # a turn that is still to be said
        return [] if content is None else [(speaker, content)]
    return [(name, content) for name, content in turn.items() if name.lower() in _SIDES and isinstance(content, str)]


class _Media:
    """Hands out the media parts of a sample: by name, by number, or one after the other."""

    def __init__(self, parts: Sequence[ViewedPart], contents: Sequence[Any]) -> None:
        self._parts: dict[str, list[ViewedPart]] = {"image": [], "video": [], "audio": []}
        for part in parts:
            if part.kind == "image":
                self._parts["image"].append(part)
            elif part.kind == "av":
                is_audio = part.name.rpartition(".")[2].lower() in _AUDIO_SUFFIXES
                self._parts["audio" if is_audio else "video"].append(part)
        self._next = dict.fromkeys(self._parts, 0)
        texts = [text for content in contents for text in _texts(content)]
        numbers = [int(match[2]) for text in texts for match in _PLACEHOLDER.finditer(text) if match[2]]
        self._first = 0 if 0 in numbers else 1

    def take(self, kind: str, number: str = "", name: str = "") -> ViewedPart | None:
        parts = self._parts[kind]
        if name:
            last = name.replace("\\", "/").rpartition("/")[2]
            found = next((part for part in parts if last == part.name or last.endswith(f".{part.name}")), None)
            if found is not None:
                return found
        at = int(number) - self._first if number else self._next[kind]
        if not number:
            self._next[kind] += 1
        return parts[at] if 0 <= at < len(parts) else None


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for item in content:
            text = item.get("text") if isinstance(item, dict) else item
            if isinstance(text, str):
                yield text


def _pieces(content: Any, media: _Media) -> Iterator[Piece]:
    if isinstance(content, str):
        start = 0
        for match in _PLACEHOLDER.finditer(content):
            yield from _text_piece(content[start : match.start()])
            part = media.take(_MEDIA[match[1].lower()], match[2])
            yield Piece(match[0], part, is_missing=part is None)
            start = match.end()
        yield from _text_piece(content[start:])
        return
    for item in content if isinstance(content, list) else [content]:
        kind = _MEDIA.get(str(item.get("type", "")).lower(), "") if isinstance(item, dict) else ""
        if kind:
            name = next((str(value) for key, value in item.items() if key != "type" and isinstance(value, str)), "")
            part = media.take(kind, name=name)
            yield Piece(name or kind, part, is_missing=part is None)
        elif isinstance(item, dict) and isinstance(item.get("text"), str):
            yield from _pieces(item["text"], media)
        elif isinstance(item, str):
            yield from _pieces(item, media)
        else:
            yield Piece(str(item))


def _text_piece(text: str) -> Iterator[Piece]:
    if text.strip():
        yield Piece(text.strip("\n"))
