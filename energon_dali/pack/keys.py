"""Keys of samples: valid in webdataset, unique, and the same in every run."""

from __future__ import annotations

import hashlib
import re

MAX_KEY_BYTES = 240
"""Longer keys are shortened. With a suffix the name still fits most file systems."""

# A dot would end the key; a backslash and control characters confuse tools that unpack shards.
_REPLACED = re.compile(r"[.\\\x00-\x1f\x7f]")
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_SLASHES = re.compile(r"/{2,}")
_META = re.compile(r"__[^/]*__(?:/|\Z)")


def clean_key(text: str) -> str:
    """Returns a valid key: without dots, control characters and bytes that are not UTF-8, and of limited length.

    Args:
        text: A path without its suffix, or a value of a column.
    """
    key = _NOT_UTF8.sub(lambda found: f"_x{ord(found[0]) & 0xFF:02x}", text)
    key = _SLASHES.sub("/", _REPLACED.sub("_", key)).strip("/ ")
    if _META.match(key):  # readers skip names such as __MACOSX__/
        key = f"k{key}"
    encoded = key.encode()
    if len(encoded) > MAX_KEY_BYTES:
        short = encoded[: MAX_KEY_BYTES - 20].decode(errors="ignore")
        key = f"{short}_{hashlib.sha256(encoded).hexdigest()[:16]}".strip("/ ")
    return key or "sample"


def key_of(value: object) -> str | None:
    """Returns the key that a value of a key column makes; None if it makes none."""
    if value is None or value == "" or isinstance(value, (dict, list)):
        return None
    return clean_key(str(value))


def numbered_key(number: int) -> str:
    """Returns the key of a row without a key column: by its number, so that it never depends on other rows."""
    return f"{number:09d}"


class UniqueKeys:
    """Makes keys unique: the second `cat` becomes `cat_2`. Keeps 8 bytes of each key."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._counts: dict[str, int] = {}

    def add(self, key: str) -> str:
        """Returns the key, with a number if it was there before."""
        number = hash64(key)
        if number not in self._seen:  # two different keys with one hash only cost the second one a suffix
            self._seen.add(number)
            return key
        count = self._counts.get(key, 1)
        while True:
            count += 1
            candidate = f"{key}_{count}"
            number = hash64(candidate)
            if number not in self._seen:
                self._counts[key] = count
                self._seen.add(number)
                return candidate


def hash64(text: str, seed: int | str = "") -> int:
    """Returns a hash of 64 bits, the same on every machine and in every version."""
    data = f"{seed}\0{text}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
