"""Image formats: the table of all of them, by name, by suffix, by PIL's name and by signature.

To add a format, write a module with an `ImageFormat` and list it in `BUILT_IN`; a format that only PIL reads takes one
line in `PIL_ONLY`. Screening, decoding, routing and `prepare` ask the tables and need no change. A package outside
this one calls `register_format` before the first sample is read.
"""

from __future__ import annotations

import functools
import re

from energon_dali.decode.formats.bitmaps import BMP, PNM
from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError
from energon_dali.decode.formats.jpeg import FORMAT as JPEG
from energon_dali.decode.formats.jpeg2000 import FORMAT as JPEG2000
from energon_dali.decode.formats.png import FORMAT as PNG
from energon_dali.decode.formats.tiff import FORMAT as TIFF
from energon_dali.decode.formats.webp import FORMAT as WEBP
from energon_dali.errors import ConfigError

__all__ = [
    "Buffer",
    "ImageFormat",
    "ImageHeader",
    "IrregularHeaderError",
    "register_format",
    "unregister_format",
]

PIL_ONLY = (
    # GIF fills what no frame covers, and AVIF spends next to nothing on a plain area: neither bounds pixels per byte.
    ImageFormat("gif", ("GIF",), ("gif",), rb"GIF8[79]a"),
    ImageFormat("avif", ("AVIF",), ("avif", "avifs"), rb"....ftypavi[fs]"),
    ImageFormat("blp", ("BLP",), ("blp",)),
    ImageFormat("cur", ("CUR",), ("cur",)),
    ImageFormat("dcx", ("DCX",), ("dcx",)),
    ImageFormat("dds", ("DDS",), ("dds",)),
    ImageFormat("fits", ("FITS",), ("fit", "fits")),
    ImageFormat("fli", ("FLI",), ("flc", "fli")),
    ImageFormat("ftex", ("FTEX",), ("ftc", "ftu")),
    ImageFormat("gbr", ("GBR",), ("gbr",)),
    ImageFormat("icns", ("ICNS",), ("icns",)),
    ImageFormat("ico", ("ICO",), ("ico",)),
    ImageFormat("im", ("IM",), ("im",)),
    ImageFormat("iptc", ("IPTC",), ("iim",)),
    ImageFormat("msp", ("MSP",), ("msp",)),
    ImageFormat("pcd", ("PCD",), ("pcd",)),
    ImageFormat("pcx", ("PCX",), ("pcx",)),
    ImageFormat("pixar", ("PIXAR",), ("pxr",)),
    ImageFormat("psd", ("PSD",), ("psd",)),
    ImageFormat("qoi", ("QOI",), ("qoi",)),
    ImageFormat("sgi", ("SGI",), ("bw", "rgb", "rgba", "sgi")),
    ImageFormat("sun", ("SUN",), ("ras",)),
    ImageFormat("tga", ("TGA",), ("icb", "tga", "vda", "vst")),
    ImageFormat("xbm", ("XBM",), ("xbm",)),
    ImageFormat("xpm", ("XPM",), ("xpm",)),
    # PIL starts Ghostscript for EPS: it would run a program that a dataset contains.
    ImageFormat("eps", ("EPS",), ("eps", "ps"), refused=True),
    # PIL can identify these and not decode them.
    ImageFormat("wmf", ("WMF",), ("emf", "wmf"), refused=True),
    ImageFormat("bufr", ("BUFR",), refused=True),
    ImageFormat("grib", ("GRIB",), refused=True),
    ImageFormat("hdf5", ("HDF5",), refused=True),
    ImageFormat("mpeg", ("MPEG",), refused=True),
    # Not in PIL; known by name so that messages can say what the file is.
    ImageFormat("heic", signature=rb"....ftyp(?:hei|hev|mif)"),
)
"""Formats that PIL alone reads, by its own header readers; and formats that PIL recognises and that are refused.

The suffixes are webdataset's with these changes: avifs and qoi are added (mpo and avif as well); mpg and mpeg are
video; bufr, grib, h5 and hdf stay bytes, because PIL cannot decode them.
"""

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
    if not format.name.isidentifier():
        raise ConfigError(f'ImageFormat(name={format.name!r}) is invalid. Give an identifier such as "jpeg".')
    for what, keys, table in (("suffix", format.suffixes, SUFFIXES), ("PIL name", format.pil_names, PIL_NAMES)):
        for key in keys:
            if key in table and table[key].name != format.name:
                raise ConfigError(f"The {what} {key!r} of {format.name!r} already belongs to {table[key].name!r}.")
    unregister_format(format.name)
    _enter(format)


def unregister_format(name: str) -> None:
    """Removes a format if there is one of this name."""
    FORMATS.pop(name, None)
    for table in (SUFFIXES, PIL_NAMES):
        for key in [key for key, format in table.items() if format.name == name]:
            del table[key]
    signatures.cache_clear()


def _enter(format: ImageFormat) -> None:
    FORMATS[format.name] = format
    SUFFIXES.update(dict.fromkeys(format.suffixes, format))
    PIL_NAMES.update(dict.fromkeys(format.pil_names, format))
    signatures.cache_clear()


@functools.cache
def signatures() -> re.Pattern[bytes]:
    """Returns what matches the first bytes of a file; the group that matched (`lastgroup`) has the format's name."""
    patterns = (b"(?P<%b>%b)" % (name.encode(), known.signature) for name, known in FORMATS.items() if known.signature)
    return re.compile(b"|".join(patterns), re.DOTALL)


for _format in BUILT_IN:
    _enter(_format)
