"""BMP: the header of a Windows bitmap."""

from __future__ import annotations

from struct import Struct

from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

_HEADER = Struct("<2sIHHIIiiHHII").unpack_from


def read_bmp(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with "BM".

    Raises:
        IrregularHeaderError: It is not an uncompressed bottom-up bitmap, or it is truncated.
        struct.error: The file ends inside the header.
    """
    _, _, _, _, offset, header_size, width, height, planes, bits, compression, _ = _HEADER(data, 0)
    if header_size not in (40, 108, 124) or planes != 1 or compression or width <= 0 or height <= 0:
        raise IrregularHeaderError
    if bits not in (8, 24, 32) or offset + (width * bits + 31) // 32 * 4 * height > len(data):
        raise IrregularHeaderError
    if offset < 14 + header_size:
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


FORMAT = ImageFormat(
    "bmp",
    pil_names=("BMP", "DIB"),
    suffixes=("bmp", "dib"),
    signature=rb"BM",
    pil_name_without_signature="DIB",  # a bitmap without the file's own header
    read_header=read_bmp,
    max_pixels_per_byte={0: 8},
)
