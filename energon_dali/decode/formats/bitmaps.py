"""BMP and PNM (PBM, PGM, PPM): formats of a short header and plain pixels."""

from __future__ import annotations

import re
from struct import Struct

from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

_BMP_HEADER = Struct("<2sIHHIIiiHHII").unpack_from
_SPACE = rb"(?:[ \t\r\n\v\f]|#[^\r\n]*[\r\n])"
_BITMAP = re.compile(rb"P[14]" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,9})[ \t\r\n]")
_MAP = re.compile(rb"P[2356]" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,5})[ \t\r\n]")
_LARGEST_HEADER_BYTES = 1024


def read_bmp(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with "BM".

    Raises:
        IrregularHeaderError: It is not an uncompressed bottom-up bitmap, or it is truncated.
        struct.error: The file ends inside the header.
    """
    _, _, _, _, offset, header_size, width, height, planes, bits, compression, _ = _BMP_HEADER(data, 0)
    if header_size not in (40, 108, 124) or planes != 1 or compression or width <= 0 or height <= 0:
        raise IrregularHeaderError
    end = offset + (width * bits + 31) // 32 * 4 * height
    if bits not in (8, 24, 32) or offset < 14 + header_size or end > len(data):
        raise IrregularHeaderError
    (colors,) = Struct("<I").unpack_from(data, 46)
    if bits == 8 and (colors > 256 or 14 + header_size + 4 * (colors or 256) > offset):
        raise IrregularHeaderError
    return ImageHeader(
        "bmp",
        width,
        height,
        1 if bits == 8 else bits // 8,
        color="palette" if bits == 8 else "rgb",
        dali_decodable=bits > 8 or not _is_short_ramp(data, 14 + header_size, colors),
    )


def _is_short_ramp(data: Buffer, start: int, colors: int) -> bool:
    """Returns whether a palette is the beginning of a gray ramp: PIL then uses pixels as gray levels."""
    levels = (0, 255) if colors == 2 else range(colors)
    return 0 < colors < 256 and all(
        bytes(data[start + 4 * i : start + 4 * i + 3]) == bytes((level,) * 3) for i, level in enumerate(levels)
    )


def read_pnm(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with P1 to P6.

    Raises:
        IrregularHeaderError: The header is not understood, or pixels are missing.
    """
    head = bytes(data[:_LARGEST_HEADER_BYTES])
    kind = head[1:2]
    found = (_BITMAP if kind in b"14" else _MAP).match(head)
    if found is None:
        raise IrregularHeaderError
    width, height = int(found[1]), int(found[2])
    channels = 3 if kind in b"36" else 1
    largest = 1 if kind in b"14" else int(found[3])
    if not 0 < largest < 65536:
        raise IrregularHeaderError
    least_bytes = {
        b"1": width * height,
        b"2": 2 * width * height - 1,
        b"3": 6 * width * height - 1,
        b"4": (width + 7) // 8 * height,
    }.get(kind, width * height * channels * (2 if largest > 255 else 1))
    if found.end() + least_bytes > len(data):
        raise IrregularHeaderError
    return ImageHeader(
        "pnm",
        width,
        height,
        channels,
        largest.bit_length(),
        color="rgb" if channels == 3 else "gray",
        # PIL decodes text maps and ranges other than 0..255. DALI's parser accepts comments only in some positions.
        dali_decodable=kind in b"56" and largest == 255 and b"#" not in head[: found.end()],
    )


BMP = ImageFormat(
    "bmp",
    pil_names=("BMP", "DIB"),
    suffixes=("bmp", "dib"),
    signature=rb"BM",
    pil_name_without_signature="DIB",  # a bitmap without the file's own header
    read_header=read_bmp,
    max_pixels_per_byte={0: 8},
)
PNM = ImageFormat(
    "pnm",
    pil_names=("PPM",),
    suffixes=("pbm", "pgm", "pnm", "ppm"),
    signature=rb"P[1-6]",
    read_header=read_pnm,
    max_pixels_per_byte=8,
)
