"""JPEG 2000: the boxes of a JP2 file and the size segment of its codestream.

DALI gets none of these files: its decoder (OpenCV's, on OpenJPEG) ends the process with SIGSEGV on some files with a
valid header and a broken codestream. PIL reports them.
"""

from __future__ import annotations

import re
from io import BytesIO
from struct import Struct

from PIL import Image

from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

_JP2_SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
_CODESTREAM_SIGNATURE = b"\xff\x4f\xff\x51"
_BOX = Struct(">I4s").unpack_from
_SIZE = Struct(">HHIIIIIIIIH").unpack_from
_IHDR = Struct(">IIHBBBB").unpack_from
_COLOR_SPACES = {1: 17, 3: 16}
"""Enumerated colour space by number of channels: gray and sRGB."""


def read_jpeg2000(data: Buffer) -> ImageHeader:
    """Returns the header of a JP2 file or a bare codestream.

    Raises:
        IrregularHeaderError: An unusual or broken file.
        struct.error: The file ends inside the header.
    """
    if data[:4] == _CODESTREAM_SIGNATURE:
        return _read_codestream(data, 0)
    length, kind = _BOX(data, 12)
    if kind != b"ftyp" or length < 16:
        raise IrregularHeaderError
    position, header = 12, None
    while True:
        length, kind = _BOX(data, position)
        if kind == b"jp2c":
            break
        if length < 8 or position + length > len(data):
            raise IrregularHeaderError
        if kind == b"jp2h":
            header = _read_header_box(data, position + 8, position + length)
        position += length
    found = _read_codestream(data, position + 8)
    if header != (found.width, found.height, found.channels):
        raise IrregularHeaderError
    if length and not 8 <= length <= len(data) - position:
        raise IrregularHeaderError
    return found


def _read_header_box(data: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """Returns (width, height, channels) of a "jp2h" box that holds only a size and an sRGB or gray colour space."""
    sizes: tuple[int, int, int] | None = None
    color_spaces: list[int] = []
    while position < end:
        length, kind = _BOX(data, position)
        if length < 8 or position + length > end:
            raise IrregularHeaderError
        if kind == b"ihdr" and length == 22:
            height, width, channels, bits, compression, _, _ = _IHDR(data, position + 8)
            if bits != 7 or compression != 7:
                raise IrregularHeaderError
            sizes = (width, height, channels)
        elif kind == b"colr" and length == 15 and data[position + 8] == 1:
            color_spaces.append(int.from_bytes(data[position + 11 : position + 15], "big"))
        elif kind != b"res ":
            # Palettes, channel definitions and profiles: DALI and PIL treat them differently.
            raise IrregularHeaderError
        position += length
    if sizes is None or color_spaces != [_COLOR_SPACES.get(sizes[2])]:
        raise IrregularHeaderError
    return sizes


def _read_codestream(data: Buffer, position: int) -> ImageHeader:
    if data[position : position + 4] != _CODESTREAM_SIGNATURE:
        raise IrregularHeaderError
    length, _, right, bottom, left, top, tile_width, tile_height, *tile_corner, channels = _SIZE(data, position + 4)
    if length != 38 + 3 * channels or channels not in (1, 3) or [left, top, *tile_corner] != [0, 0, 0, 0]:
        raise IrregularHeaderError
    if position + 4 + length > len(data) or not tile_width or not tile_height:
        raise IrregularHeaderError
    for component in range(position + 42, position + 42 + 3 * channels, 3):
        # Eight unsigned bits, no subsampling.
        if bytes(data[component : component + 3]) != b"\x07\x01\x01":
            raise IrregularHeaderError
    return ImageHeader("jpeg2000", right, bottom, channels, color="gray" if channels == 1 else "rgb")


def open_reduced(data: Buffer, factor: int, rows: int) -> Image.Image:
    """Returns an image that PIL will load at 1/factor of its size: without the highest levels of its wavelet.

    PIL refuses the same files as at full size: of 2,000 damaged ones it refused 1,010, at every scale.

    Args:
        data: The file.
        factor: 2, 4 or 8.
        rows: Not used: all rows are decoded.
    """
    if "JPEG2000" not in Image.OPEN:
        Image.init()
    image = Image.OPEN["JPEG2000"][0](BytesIO(data), "")
    setattr(image, "reduce", factor.bit_length() - 1)  # noqa: B010 - it hides a method of the base class
    return image


FORMAT = ImageFormat(
    "jpeg2000",
    pil_names=("JPEG2000",),
    suffixes=("j2c", "j2k", "jp2", "jpc", "jpf", "jpx"),
    signature=re.escape(_JP2_SIGNATURE) + b"|" + re.escape(_CODESTREAM_SIGNATURE),
    read_header=read_jpeg2000,
    open_reduced=open_reduced,
    reduced_shift=0.5,
    gpu_codec=True,
)
