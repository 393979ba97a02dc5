"""What a part is, by its name or by its content: an image, video or audio, or anything else ("basic")."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Literal

from energon_dali.decode.formats import SUFFIXES
from energon_dali.demuxers import AV_SUFFIXES
from energon_dali.errors import ConfigError

PartKind = Literal["image", "av", "basic"]

IMAGE_SUFFIXES = SUFFIXES.keys()
"""Suffixes (in lower case) of the registered image formats."""
_GUESS_BYTES = 8192
"""What `filetype` looks at."""


@functools.lru_cache(1000)
def find_part_kind(name: str) -> tuple[PartKind, str]:
    """Returns what a part is by its part name or file name, and its suffix. Results are cached.

    Args:
        name: Part name ("jpg", "left.png"), or file name with a directory ("train/0001.jpg").
    """
    directory, _, base = name.rpartition("/")
    suffix = base.rpartition(".")[2] if "." in base or not directory else ""
    lower = suffix.lower()
    if lower in IMAGE_SUFFIXES:
        return "image", suffix
    return ("av" if lower in AV_SUFFIXES else "basic"), suffix


def decodes_kind(kind: PartKind, parts: Collection[str] | None) -> bool:
    """Returns whether parts of a kind may have to be decoded.

    Args:
        kind: The kind.
        parts: Names of all parts; None if they are not known.
    """
    return parts is None or any(find_part_kind(name.removesuffix(".gz"))[0] == kind for name in parts)


def guess_part_kind(raw: bytes | memoryview, named: tuple[PartKind, str]) -> tuple[PartKind, str]:
    """Returns the kind of a part by its content if that is media, otherwise by its name.

    Args:
        raw: The content.
        named: What `find_part_kind` returned for the name.
    """
    import filetype

    found = filetype.guess(bytes(raw[:_GUESS_BYTES]))
    if found is None:
        return named
    if found.mime.startswith(("video/", "audio/")):
        return "av", str(found.extension)
    guessed = find_part_kind(found.extension)
    return guessed if guessed[0] != "basic" else ("basic", named[1])


def require_filetype() -> None:
    """Checks that the package `filetype` is installed.

    Raises:
        ConfigError: It is not.
    """
    try:
        import filetype  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "guess_content=True was given and the package filetype is not installed. It recognises media by their "
            "content. Run `pip install filetype`, or leave guess_content out."
        ) from error
