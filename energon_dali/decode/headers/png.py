"""Reads the header of a PNG and walks its chunks to the end, so that a cut file is known before any decoder sees it.

DALI (libpng) reports damaged pixels as PIL does, but steps over damage in other chunks, which PIL refuses.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError
from energon_dali.decode.headers.png_metadata import PngMetadata
from energon_dali.errors import DecodeError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = Struct(">I4s").unpack_from
_SUM = Struct(">I").unpack_from
_IHDR = Struct(">IIBBBBB").unpack_from
_LARGEST = 2**31 - 1
_COLORS = {0: ("gray", 1), 2: ("rgb", 3), 3: ("palette", 1), 4: ("gray", 2), 6: ("rgb", 4)}
_MOST_BYTES_PER_BYTE = 1033
"""Deflate packs 258 bytes into two bits at best."""
_TRANSPARENCY_BYTES = {0: 2, 2: 6}
_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def read_png(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with the PNG signature.

    Raises:
        IrregularHeaderError: A chunk reaches past the end, or one that must be there is missing.
        struct.error: The file ends inside a chunk.
        DecodeError: The size cannot be true.
    """
    size = len(data)
    length, kind = _CHUNK(data, 8)
    if kind != b"IHDR" or length != 13:
        raise IrregularHeaderError
    width, height, bit_depth, color_type, compression, filtering, interlace = _IHDR(data, 16)
    if bit_depth not in _BIT_DEPTHS.get(color_type, ()) or compression or filtering or interlace > 1:
        raise IrregularHeaderError
    color, channels = _COLORS[color_type]
    row_bytes = (width * channels * bit_depth + 7) // 8
    if row_bytes * height > size * _MOST_BYTES_PER_BYTE:
        raise DecodeError(
            f"{size:,} bytes cannot hold {width} x {height} pixels: its header is broken", "png", "screen"
        )
    transparent = pixels = palette = False
    metadata, position = PngMetadata(), 8
    while True:
        length, kind = _CHUNK(data, position)
        end = position + 12 + length
        if end > size or length > _LARGEST:
            raise IrregularHeaderError
        if kind == b"IDAT":
            pixels = True
        else:
            content = bytes(data[position + 8 : end - 4])
            metadata.plain &= _has_right_sum(data, kind, content, end)
            if kind == b"IEND":
                break
            if kind == b"tRNS":
                transparent = True
                metadata.plain &= palette if color_type == 3 else length == _TRANSPARENCY_BYTES.get(color_type)
            elif kind == b"PLTE":
                palette = True
            elif kind != b"IHDR":
                if not kind.isalpha():
                    raise IrregularHeaderError
                metadata.add(kind, content)
        position = end
    if not pixels or (color == "palette" and not palette):
        raise IrregularHeaderError
    orientation, alike = metadata.orientation()
    # 16 bits: DALI scales to 8, PIL clips or rounds another way.
    return ImageHeader(
        "png",
        width,
        height,
        channels,
        bit_depth,
        transparent or color_type >= 4,
        orientation,
        color,
        dali_decodable=bit_depth <= 8 and metadata.plain and alike,
    )


def _has_right_sum(data: Buffer, kind: bytes, content: bytes, end: int) -> bool:
    sum_: int = _SUM(data, end - 4)[0]
    return crc32(content, crc32(kind)) == sum_
