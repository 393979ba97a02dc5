"""All image formats: by name, by suffix, by PIL's name and by signature."""

from __future__ import annotations

import re

from energon_dali.decode.formats.bmp import FORMAT as BMP
from energon_dali.decode.formats.image_format import ImageFormat
from energon_dali.decode.formats.jpeg import FORMAT as JPEG
from energon_dali.decode.formats.jpeg2000 import FORMAT as JPEG2000
from energon_dali.decode.formats.pil_only import FORMATS as PIL_ONLY
from energon_dali.decode.formats.png import FORMAT as PNG
from energon_dali.decode.formats.pnm import FORMAT as PNM
from energon_dali.decode.formats.tiff import FORMAT as TIFF
from energon_dali.decode.formats.webp import FORMAT as WEBP
from energon_dali.errors import ConfigError

BUILT_IN = (JPEG, PNG, WEBP, TIFF, BMP, PNM, JPEG2000, *PIL_ONLY)
"""The formats of this package; a new module is listed here."""

FORMATS: dict[str, ImageFormat] = {}
"""All formats by name, in the order in which their signatures are tried."""
SUFFIXES: dict[str, ImageFormat] = {}
"""Formats by suffix, in lower case."""
PIL_NAMES: dict[str, ImageFormat] = {}
"""Formats by PIL's name, in upper case."""


def register_format(format: ImageFormat) -> None:
    """Adds a format, or replaces the one of the same name. Call it before the first sample is read, in every process.

    Args:
        format: The format: its names and how its header is read.

    Raises:
        ConfigError: The name is not an identifier, or a suffix or PIL name belongs to another format.
    """
    global SIGNATURES
    if not format.name.isidentifier():
        raise ConfigError(f'ImageFormat(name={format.name!r}) is invalid. Give an identifier such as "jpeg".')
    for what, keys, table in (("suffix", format.suffixes, SUFFIXES), ("PIL name", format.pil_names, PIL_NAMES)):
        for key in keys:
            if key in table and table[key].name != format.name:
                raise ConfigError(f"The {what} {key!r} of {format.name!r} already belongs to {table[key].name!r}.")
    unregister_format(format.name)
    _enter(format)
    SIGNATURES = _compile_signatures()


def unregister_format(name: str) -> None:
    """Removes a format if there is one of this name."""
    global SIGNATURES
    FORMATS.pop(name, None)
    for table in (SUFFIXES, PIL_NAMES):
        for key in [key for key, format in table.items() if format.name == name]:
            del table[key]
    SIGNATURES = _compile_signatures()


def _enter(format: ImageFormat) -> None:
    FORMATS[format.name] = format
    SUFFIXES.update(dict.fromkeys(format.suffixes, format))
    PIL_NAMES.update(dict.fromkeys(format.pil_names, format))


def _compile_signatures() -> re.Pattern[bytes]:
    patterns = (b"(?P<%b>%b)" % (name.encode(), known.signature) for name, known in FORMATS.items() if known.signature)
    return re.compile(b"|".join(patterns), re.DOTALL)


for _format in BUILT_IN:
    _enter(_format)
SIGNATURES = _compile_signatures()
"""Matches the first bytes of a file. The name of the group that matched (`lastgroup`) is the name of the format."""
