"""Writes the texts of images, videos and audio in the places of their placeholders, and remembers what moved where."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.errors import DatasetError
from energon_dali.task_encoder.chat_template import Span


@dataclass(frozen=True, slots=True)
class Media:
    """The media of one kind in a conversation."""

    noun: str
    """"image", "video" or "audio"."""
    token: str
    """Placeholder of one in the text."""
    layouts: Sequence[Any]
    """Their layouts, in the order of the text."""
    texts: Sequence[str]
    """What each becomes."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A text whose placeholders were replaced."""

    text: str
    """The text after that."""
    media: list[Span]
    """Where the texts of media are in it."""
    ends: list[int]
    """Where each placeholder ended before."""

    def moved(self, spans: Sequence[Span]) -> list[Span]:
        """Returns characters of the text before as those of the text after.

        Args:
            spans: (start, stop) of each.
        """
        return [(self._moved(start), self._moved(stop)) for start, stop in spans]

    def _moved(self, place: int) -> int:
        before = bisect_right(self.ends, place)
        return place if not before else place + self.media[before - 1][1] - self.ends[before - 1]


def expand_media(text: str, media: Sequence[Media]) -> Expanded:
    """Returns a text with each placeholder replaced by the text of its medium, in one pass from left to right.

    What one medium becomes may contain the placeholder of another kind.

    Args:
        text: With one placeholder per medium.
        media: All kinds that the text may have.

    Raises:
        DatasetError: The text has more or fewer placeholders of a kind than there are media.
    """
    for one in media:
        count = text.count(one.token)
        if count != len(one.texts):
            raise DatasetError(
                f"A conversation has {count} {one.token!r} after its chat template, and {len(one.texts)} {one.noun} "
                "parts were given. Give one for each; a text must not contain the placeholder itself."
            )
    pattern = re.compile("|".join(f"({re.escape(one.token)})" for one in media if one.texts) or "(?!)")
    left = [iter(one.texts) for one in media if one.texts]
    pieces: list[str] = []
    spans: list[Span] = []
    ends: list[int] = []
    start = length = 0
    for match in pattern.finditer(text):
        assert match.lastindex is not None
        of_medium = next(left[match.lastindex - 1])
        pieces += [text[start : match.start()], of_medium]
        length += match.start() - start
        spans.append((length, length + len(of_medium)))
        length += len(of_medium)
        start = match.end()
        ends.append(start)
    return Expanded("".join([*pieces, text[start:]]), spans, ends)
