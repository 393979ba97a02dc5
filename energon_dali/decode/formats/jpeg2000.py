"""JPEG 2000: the boxes of a JP2 file and the size segment of its codestream.

DALI gets none of these files: its decoder (OpenCV's, on OpenJPEG) ends the process with SIGSEGV on some files with a
valid header and a broken codestream. PIL reports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    boxes = _read_boxes(data, 12, len(data))
    kind, start, end = next(boxes, (b"", 0, 0))
    if kind != b"ftyp" or end - start < 8:
        raise IrregularHeaderError
    header = None
    for kind, start, end in boxes:
        if kind == b"jp2h":
            header = _read_header_box(data, start, end)
        elif kind == b"jp2c":
            found = _read_codestream(data, start)
            if header == (found.width, found.height, found.channels):
                return found
    raise IrregularHeaderError


def _read_boxes(data: Buffer, position: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the boxes from a position on: (kind, start of the content, its end).

    The codestream is the last one, and may extend to the end of the file.

    Raises:
        IrregularHeaderError: A box is longer than what it is in, or its length has 64 bits.
        struct.error: The file ends inside a box.
    """
    while position < end:
        length, kind = _BOX(data, position)
        if not length and kind == b"jp2c":
            length = end - position
        if length < 8 or position + length > end:
            raise IrregularHeaderError
        yield kind, position + 8, position + length
        position = end if kind == b"jp2c" else position + length


def _read_header_box(data: Buffer, position: int, end: int) -> tuple[int, int, int]:
    """Returns (width, height, channels) of a "jp2h" box that holds only a size and an sRGB or gray colour space."""
    sizes: tuple[int, int, int] | None = None
    color_spaces: list[int] = []
    for kind, start, stop in _read_boxes(data, position, end):
        if kind == b"ihdr" and stop - start == 14:
            height, width, channels, bits, compression, _, _ = _IHDR(data, start)
            if bits != 7 or compression != 7:
                raise IrregularHeaderError
            sizes = (width, height, channels)
        elif kind == b"colr" and stop - start == 7 and data[start] == 1:
            color_spaces.append(int.from_bytes(data[start + 3 : start + 7], "big"))
        elif kind != b"res ":
            # Palettes, channel definitions and profiles: DALI and PIL treat them differently.
            raise IrregularHeaderError
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

    Raises:
        IrregularHeaderError: PIL would return wrong colours.
        struct.error: The file ends inside the header.
    """
    if not _is_reducible(data):
        raise IrregularHeaderError
    if "JPEG2000" not in Image.OPEN:
        Image.init()
    image = Image.OPEN["JPEG2000"][0](BytesIO(data), "")
    setattr(image, "reduce", factor.bit_length() - 1)  # noqa: B010 - it hides a method of the base class
    # PIL rounds the reduced size to the nearest, OpenJPEG rounds it up, and PIL refuses the image where they differ.
    image._size = tuple(-(-side // factor) * factor for side in image.size)  # type: ignore[assignment]
    return image


def _is_reducible(data: Buffer) -> bool:
    """Returns whether PIL reduces an image to the colours that it has at full size.

    At a smaller scale PIL mixes the indices of a palette, and misplaces rows of components that are smaller than the
    image, because it rounds their size down. Of grays of more than 8 bits it makes 8 by clipping, which must come last.
    """
    codestream = 0
    if data[:4] != _CODESTREAM_SIGNATURE:
        for kind, start, end in _read_boxes(data, 12, len(data)):
            if kind == b"jp2h" and any(inner == b"pclr" for inner, _, _ in _read_boxes(data, start, end)):
                return False
            codestream = start  # the last box
    *_, left, top, _, _, _, _, channels = _SIZE(data, codestream + 4)
    components = bytes(data[codestream + 42 : codestream + 42 + 3 * channels])
    return (
        left == top == 0
        and all(bits <= 7 for bits in components[::3])
        and components[1::3] == components[2::3] == bytes([1]) * channels
    )


FORMAT = ImageFormat(
    "jpeg2000",
    pil_names=("JPEG2000",),
    suffixes=("j2c", "j2k", "jp2", "jpc", "jpf", "jpx"),
    signature=re.escape(_JP2_SIGNATURE) + b"|" + re.escape(_CODESTREAM_SIGNATURE),
    read_header=read_jpeg2000,
    open_reduced=open_reduced,
    reduced_shift=0.5,
    reduced_oversampling=2.0,  # what is left of a wavelet is less smooth than a scaled DCT
    gpu_codec=True,
)
