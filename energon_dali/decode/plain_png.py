"""Opens the PNG that most programs write, header, pixels and end, without PIL's reader of chunks.

For an image of 32 x 32 pixels PIL's reader, which is written in Python, takes twice as long as unpacking the pixels.
PIL's own decoder unpacks them here too, so the pixels are the same. Whatever is not plain, or damaged, is left to PIL.
"""

from __future__ import annotations

import zlib
from struct import Struct

from PIL import Image

from energon_dali.decode.formats import Buffer

MOST_BYTES = 1 << 16
"""Largest file that is tried: in larger ones the pixels take most of the time, and are often in several chunks."""

_MOST_PIXELS = 1 << 20

_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END = b"\0\0\0\0IEND"
_CHUNK = Struct(">I4s").unpack_from
_SIZE = Struct(">II").unpack_from
_SUM = Struct(">I").unpack_from
_HEADER_END = 33
_CONTENT = 41
_MODES = {b"\x08\0\0\0\0": "L", b"\x08\x02\0\0\0": "RGB", b"\x08\x06\0\0\0": "RGBA"}
"""Mode by the header's bytes after the size: 8 bits per channel, not interlaced."""


def open_plain_png(data: Buffer) -> Image.Image | None:
    """Returns a loaded image, as PIL would load it; None if PIL has to read the file.

    Args:
        data: The encoded file.
    """
    size = len(data)
    if not _CONTENT < size <= MOST_BYTES:
        return None
    data = bytes(data)
    mode = _MODES.get(data[24:29])
    if mode is None or not data.startswith(_START) or _SUM(data, 29)[0] != zlib.crc32(data[12:29]):
        return None
    length, kind = _CHUNK(data, _HEADER_END)
    end = _CONTENT + length
    if kind != b"IDAT" or end + 16 != size or not data.startswith(_END, end + 4):
        return None
    width, height = _SIZE(data, 16)
    if not 0 < width * height <= _MOST_PIXELS:
        return None
    try:
        return Image.frombytes(mode, (width, height), data[_CONTENT:end], "zip", mode, False)
    except (TypeError, ValueError, OSError):  # pixels are missing or damaged, or another release of PIL
        return None
