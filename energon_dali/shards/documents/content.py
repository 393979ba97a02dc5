"""Reads files of limited size, shortens their values for messages, and checks the paths and sizes that they contain."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Collection
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.node_files import read_once
from energon_dali.shards.storage.retry import with_retries
from energon_dali.shards.storage.store import current_scope

MAX_DOCUMENT_BYTES = 128 << 20
"""Largest YAML or JSON file of a dataset; a million shards with long names take 80 MiB."""
MAX_INDEX_BYTES = 1 << 30
"""Largest index that is read into memory: 128 million offsets."""


def read_content(path: StoragePath, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
    """Returns the content of a file of a dataset, None if there is no such file.

    Args:
        path: The file.
        max_bytes: Largest size in bytes.

    Raises:
        DatasetFormatError: The file is larger.
        StorageError: It cannot be read, or it is not a regular file (a pipe or a device never ends).
    """
    opening = None if path.is_local else current_scope().opening
    return read_stored(path, max_bytes) if opening is None else opening.read(path, max_bytes)


def read_stored(path: StoragePath, max_bytes: int) -> bytes | None:
    """Returns the content of a file from its storage, in one request of one process of the node; see `read_content`."""

    def read() -> bytes | None:
        try:
            return path.read_bytes(max_bytes)
        except FileNotFoundError:
            return None

    content = read() if path.is_local else read_once(f"{path.url} {max_bytes}", read)
    if content is not None and len(content) > max_bytes:
        raise too_large(path, max(path.size(), len(content)), max_bytes)
    return content


def map_content(path: StoragePath, max_bytes: int = MAX_INDEX_BYTES) -> npt.NDArray[np.uint8] | None:
    """Returns the content of an index, None if there is no such file.

    Args:
        path: The file.
        max_bytes: Largest size in bytes if it is not on a local disk.

    Returns:
        uint8[size], read-only: mapped if it is local, else read.

    Raises:
        DatasetFormatError: The file is larger.
        StorageError: It cannot be read.
    """
    if not path.is_local:
        content = read_content(path, max_bytes)
        return None if content is None else np.frombuffer(content, np.uint8)
    try:
        reader = path.open()
    except FileNotFoundError:
        return None
    reader.close()  # opening it showed that it is a regular file
    if not reader.size:
        return np.zeros(0, np.uint8)
    try:
        return with_retries(lambda: np.memmap(path.local, np.uint8, "r"), "map", path.url)
    except (FileNotFoundError, ValueError) as error:
        raise StorageError(f"Could not map {path} into memory: {error}. Check that it is still there.") from error


def too_large(path: StoragePath, size: int, max_bytes: int) -> DatasetFormatError:
    """Returns the error for a file that is too large for its kind."""
    return DatasetFormatError(
        f"{path} has {size:,} bytes, and files of its kind may have {max_bytes:,}. It cannot be what its name says: "
        "replace it, or prepare the dataset again."
    )


class _Excerpt(reprlib.Repr):
    """Shows the beginning of a value of any size: a YAML alias may stand for a billion values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 6
        self.maxstring = self.maxlong = self.maxother = 100


_EXCERPT = _Excerpt()
_SHOWN_LETTERS = 300
_SHOWN_NAMES = 10


def excerpt(value: object) -> str:
    """Returns a shortened `repr(value)` for a message, because values from outside may be long."""
    text = _EXCERPT.repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[: _SHOWN_LETTERS - 3]}..."


def excerpt_names(names: list[str]) -> str:
    """Returns the first names for a message, each shortened, joined by commas."""
    shown = [name if len(name) <= 100 else f"{name[:97]}..." for name in names[:_SHOWN_NAMES]]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else "")


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""Control characters, except tabs."""


def printable(line: str) -> str:
    """Returns a line without control characters, with which texts of a dataset could command the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def printable_lines(text: str) -> str:
    """Returns a text of several lines, each as `printable` returns it."""
    return "\n".join(map(printable, text.splitlines()))


_LEADS_OUT = re.compile(r"(?:^|/)\.\.(?:/|$)|^/|^$|\0|://")


def check_inner_path(name: str) -> None:
    """Raises ValueError, which says why, unless `name` is a path below the folder that it is joined to.

    Symbolic links are allowed: they were made by the owner of the folder, not by a document in it.
    """
    if not is_inner_path(name):
        raise ValueError(f"{excerpt(name)} leads out of the dataset, which paths in its files must not")


def is_inner_path(name: str) -> bool:
    """Returns whether `name` passes `check_inner_path`."""
    # A server may decode %2e%2e.
    return not (_LEADS_OUT.search(name) or ("%" in name and _LEADS_OUT.search(unquote(name))))


def check_inner_paths(names: Collection[str]) -> None:
    """Raises ValueError unless all names pass `check_inner_path`."""
    text = "\0".join(names)
    # Few names contain any of these, and checking a hundred thousand names together is faster.
    if (
        text.count("\0") != len(names) - 1
        or "" in names
        or text.startswith("/")
        or any(mark in text for mark in ("..", "://", "%", "\0/", "\0\0"))
    ):
        for name in names:
            check_inner_path(name)


# Sizes as people write them: 500GB, 1TiB, 64 MiB.
_UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", 1)},
    **{prefix: 1000**power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}I": 1024**power for power, prefix in enumerate("KMGTP", 1)},
}
_LETTERS = frozenset("KMGTP")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: int | float | str, name: str = "size", *, binary_letters: bool = False) -> int:
    """Returns a size in bytes.

    Args:
        size: A number of bytes, or text such as "500GB" and "500G" (powers of 1000) or "1TiB" (powers of 1024).
        name: Of the setting, for the message.
        binary_letters: Take a single letter, as in "2G", for a power of 1024.

    Raises:
        ConfigError: It is not a size, or less than one byte.
    """
    number: float | int | None = None
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        letters = match[2].upper() if match else ""
        unit = _UNITS.get(f"{letters}I" if binary_letters and letters in _LETTERS else letters)
        if match is not None and unit is not None:
            number = int(match[1]) * unit if match[1].isdigit() else float(match[1]) * unit
    elif isinstance(size, (int, float)) and not isinstance(size, bool):
        number = size
    if number is None or not math.isfinite(number) or number < 1:
        raise ConfigError(
            f"{name}={size!r} is not a size: give a number of bytes, or text such as '500GB' (powers of 1000) or "
            "'1TiB' (powers of 1024)."
        )
    return int(number)


def show_count(count: int, noun: str) -> str:
    """Returns a count for people: 1 shard, 2,000 shards."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_bytes(size: float) -> str:
    """Returns a size for people: 1.5 GiB."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
