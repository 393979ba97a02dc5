"""What a file is, by its name or its content, and the suffix that its part gets."""

from __future__ import annotations

from typing import Literal

from energon_dali.decode.formats import FORMATS, signatures
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.demuxers import AV_SUFFIXES

MediaKind = Literal["image", "video", "audio"]
AUDIO_SUFFIXES = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})
_GUESS_BYTES = 8192


def suffix_of(path: str) -> str:
    """Returns the suffix of a path in lower case, without its dot; "" if there is none."""
    name = path.rpartition("/")[2]
    stem, _dot, suffix = name.rpartition(".")
    return suffix.lower() if stem else ""


def media_kind(suffix: str) -> MediaKind | None:
    """Returns what a suffix stands for, None if it is not one of media."""
    kind = find_part_kind(suffix)[0]
    if kind == "av":
        return "audio" if suffix in AUDIO_SUFFIXES else "video"
    return "image" if kind == "image" else None


def guess_suffix(content: bytes) -> str:
    """Returns the suffix for some media by their first bytes; "" if they are not recognised."""
    match = signatures().match(content)
    if match is not None and match.lastgroup:
        suffixes = FORMATS[match.lastgroup].suffixes
        return "jpg" if "jpg" in suffixes else suffixes[0]
    import filetype

    found = filetype.guess(content[:_GUESS_BYTES])
    suffix = "" if found is None else str(found.extension)
    return suffix if suffix in AV_SUFFIXES or media_kind(suffix) else ""
