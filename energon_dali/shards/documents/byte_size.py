"""Sizes in bytes as people write them: 500GB, 1TiB, 64 MiB."""

from __future__ import annotations

import math
import re

from energon_dali.errors import ConfigError

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


def show_bytes(size: float) -> str:
    """Returns a size for people: 1.5 GiB."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
