"""Reads the header of a PNG and walks its chunks to the end, so that a cut file is known before any decoder sees it."""

from __future__ import annotations

from struct import Struct

from energon_dali.decode.headers.exif import exif_orientation
from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = Struct(">I4s").unpack_from
_IHDR = Struct(">IIBBBBB").unpack_from
_LARGEST = 2**31 - 1
_COLORS = {0: ("gray", 1), 2: ("rgb", 3), 3: ("palette", 1), 4: ("gray", 2), 6: ("rgb", 4)}
_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def read_png(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with the PNG signature.

    Raises:
        IrregularHeaderError: A chunk reaches past the end, or one that must be there is missing.
        struct.error: The file ends inside a chunk.
    """
    size = len(data)
    length, kind = _CHUNK(data, 8)
    if kind != b"IHDR" or length != 13:
        raise IrregularHeaderError
    width, height, bit_depth, color_type, compression, filtering, interlace = _IHDR(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(color_type, ()) or compression or filtering or interlace > 1:
        raise IrregularHeaderError
    color, channels = _COLORS[color_type]
    transparent = animated = pixels = palette = False
    orientation, position, exif_blocks, regular = 1, 33, 0, True
    while True:
        length, kind = _CHUNK(data, position)
        end = position + 12 + length
        if end > size or length > _LARGEST:
            raise IrregularHeaderError
        if kind == b"IDAT":
            pixels = True
        elif kind == b"IEND":
            break
        elif kind == b"tRNS":
            transparent = True
        elif kind == b"eXIf":
            exif_blocks += 1
            orientation, regular = exif_orientation(data, position + 8, end - 4)
        elif kind == b"PLTE":
            palette = True
        elif kind == b"acTL":
            animated = True
        elif not kind.isalpha():
            raise IrregularHeaderError
        position = end
    if not pixels or (color == "palette" and not palette):
        raise IrregularHeaderError
    # 16 bits: DALI scales to 8, PIL clips or rounds another way. Animations: which frame comes first is PIL's to say.
    # Several EXIF blocks are for DALI what several orientations in one are.
    return ImageHeader(
        "png", width, height, channels, bit_depth, transparent or color_type >= 4, orientation, color,
        dali_decodable=bit_depth <= 8 and not animated and regular and exif_blocks < 2,
    )  # fmt: skip
