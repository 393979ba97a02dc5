"""PNM: the header of a portable any-map (PBM, PGM, PPM)."""

from __future__ import annotations

import re

from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

_SPACE = rb"(?:[ \t\r\n\v\f]|#[^\r\n]*[\r\n])"
_BITMAP = re.compile(rb"P[14]" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,9})[ \t\r\n]")
_MAP = re.compile(rb"P[2356]" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,9})" + _SPACE + rb"+(\d{1,5})[ \t\r\n]")
_LARGEST_HEADER_BYTES = 1024


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


FORMAT = ImageFormat(
    "pnm",
    pil_names=("PPM",),
    suffixes=("pbm", "pgm", "pnm", "ppm"),
    signature=rb"P[1-6]",
    read_header=read_pnm,
    max_pixels_per_byte=8,
)
