"""Reads the header of a JPEG up to its frame (SOF), which is what DALI's parser reads too."""

from __future__ import annotations

from struct import Struct

from energon_dali.decode.headers.exif import exif_orientation
from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError

_SEGMENT = Struct(">BBH").unpack_from
_FRAME = Struct(">BHHB").unpack_from
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SUBSAMPLINGS = {0x11: "444", 0x21: "422", 0x22: "420", 0x41: "411", 0x42: "410", 0x12: "440"}
_COLORS = {(3, -1): "ycc", (3, 0): "rgb", (3, 1): "ycc", (4, -1): "cmyk", (4, 0): "cmyk", (4, 2): "ycck"}


def read_jpeg(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with FF D8 FF.

    Raises:
        IrregularHeaderError: The segments do not follow one another as they should, or there is no frame.
        struct.error: The file ends inside the header.
    """
    position, size, orientation, adobe = 2, len(data), 1, -1
    while True:
        prefix, marker, length = _SEGMENT(data, position)
        end = position + 2 + length
        if prefix != 0xFF or marker < 0xC0 or length < 2 or end > size or 0xD0 <= marker <= 0xDA:
            raise IrregularHeaderError
        if marker in _FRAME_MARKERS:
            break
        if marker == 0xE1 and length > 16 and data[position + 4 : position + 10] == b"Exif\0\0":
            orientation = exif_orientation(data, position + 10, end)
        elif marker == 0xEE and length >= 14 and data[position + 4 : position + 9] == b"Adobe":
            adobe = data[position + 15]
        position = end
    precision, height, width, components = _FRAME(data, position + 4)
    if length != 8 + 3 * components:
        raise IrregularHeaderError
    regular = precision == 8 and marker <= 0xC2 and components in (1, 3, 4)
    factors = data[position + 11] if components else 0
    if components == 1:
        subsampling, color = "gray", "gray"
    else:
        # One look at all factors: 4:2:0 and its like have one full component and small others.
        others = {data[position + 11 + 3 * number] for number in range(1, components)}
        if components == 4 and others == {factors}:
            subsampling = "444"
        else:
            subsampling = _SUBSAMPLINGS.get(factors, "other") if others <= {0x11} or components == 4 else "other"
        color = _COLORS.get((components, adobe), "ycc")
        if adobe < 0 and bytes(data[position + 10 : end : 3]) == b"RGB":
            color = "rgb"
    return ImageHeader(
        "jpeg", width, height, components, precision, False, orientation, color, subsampling, marker in (0xC2, 0xC6, 0xCA, 0xCE),
        regular,
    )  # fmt: skip
