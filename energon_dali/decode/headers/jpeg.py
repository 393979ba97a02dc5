"""Reads the header of a JPEG up to its first scan (SOS), which is as far as DALI's parser reads too."""

from __future__ import annotations

from struct import Struct

from energon_dali.decode.headers.exif import exif_orientation, xmp_orientation
from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError
from energon_dali.errors import DecodeError

_SEGMENT = Struct(">BBH").unpack_from
_FRAME = Struct(">BHHB").unpack_from
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_SUBSAMPLINGS = {0x11: "444", 0x21: "422", 0x22: "420", 0x41: "411", 0x42: "410", 0x12: "440"}
_COLORS = {(3, -1): "ycc", (3, 0): "rgb", (3, 1): "ycc", (4, -1): "cmyk", (4, 0): "cmyk", (4, 2): "ycck"}

_MOST_PIXELS_PER_BYTE = 2048
"""A Huffman-coded block of 8 x 8 pixels takes a bit at least: 512 pixels per byte, half of that in odd subsamplings.

A broken size below `max_pixels` would otherwise cost each decoder hundreds of megabytes for nothing."""
_HARMLESS_PIXELS = 1 << 24
"""Up to this size the bound does not count: libjpeg pads what is missing, and PIL takes the file."""


def read_jpeg(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with FF D8 FF.

    Raises:
        IrregularHeaderError: The segments do not follow one another as they should, or there is no frame.
        struct.error: The file ends inside the header.
        DecodeError: The size cannot be true.
    """
    position, size, orientation, adobe, frame, frame_marker = 2, len(data), 0, -1, 0, 0
    exif_blocks, regular, xmp = 0, True, b""
    while True:
        prefix, marker, length = _SEGMENT(data, position)
        end = position + 2 + length
        if prefix != 0xFF or not 0xC0 <= marker < 0xFF or length < 2 or end > size or 0xD0 <= marker <= 0xD9:
            raise IrregularHeaderError
        if marker in _FRAME_MARKERS:
            if frame:
                raise IrregularHeaderError
            frame, frame_marker, frame_length = position + 4, marker, length
        elif marker == 0xDA:
            break
        elif marker == 0xE1 and length >= 8 and data[position + 4 : position + 10] == b"Exif\0\0":
            exif_blocks += 1
            if exif_blocks == 1:  # as PIL
                orientation, regular = exif_orientation(data, position + 10, end)
        elif marker == 0xE1 and data[position + 4 : position + 33] == _XMP:
            xmp = bytes(data[position + 33 : end])
        elif marker == 0xEE and length >= 14 and data[position + 4 : position + 9] == b"Adobe":
            adobe = data[position + 15]
        position = end
    if not frame:
        raise IrregularHeaderError
    if not orientation and xmp:
        orientation = xmp_orientation(xmp)
        regular &= orientation < 2  # DALI does not look there
    header = _read_frame(data, frame, frame_marker, frame_length, orientation or 1, adobe)
    # Several EXIF blocks are for DALI what several orientations in one are. CMYK it rounds
    # otherwise where there is black, and inverts it where Adobe's marker is missing.
    header.dali_decodable &= regular and exif_blocks < 2 and header.channels < 4
    return header


def _read_frame(data: Buffer, position: int, marker: int, length: int, orientation: int, adobe: int) -> ImageHeader:
    """Returns the header that the content of a SOF segment at `position` describes."""
    precision, height, width, components = _FRAME(data, position)
    if length != 8 + 3 * components or components not in (1, 3, 4):
        raise IrregularHeaderError
    if marker <= 0xC2 and width * height > max(_HARMLESS_PIXELS, len(data) * _MOST_PIXELS_PER_BYTE):
        raise DecodeError(
            f"{len(data):,} bytes cannot hold {width} x {height} pixels: its header is broken", "jpeg", "screen"
        )
    factors = data[position + 7]
    others = {data[position + 10], data[position + 13]} if components > 1 else set()
    if components == 1:
        subsampling, color = "gray", "gray"
    else:
        # One full component and small others; the fourth of CMYK is as large as the first.
        if others == {factors}:
            subsampling = "444"
        else:
            subsampling = _SUBSAMPLINGS.get(factors, "other") if others == {0x11} else "other"
        color = _COLORS.get((components, adobe), "ycc")
        if adobe < 0 and (data[position + 6], data[position + 9], data[position + 12]) == (82, 71, 66):
            color = "rgb"  # component names "R", "G", "B"
    return ImageHeader(
        "jpeg",
        width,
        height,
        components,
        precision,
        False,
        orientation,
        color,
        subsampling,
        marker in (0xC2, 0xC6, 0xCA, 0xCE),
        precision == 8 and marker <= 0xC2,
    )
