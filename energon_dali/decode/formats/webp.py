"""WebP: lossy, lossless, or extended with alpha, animation and EXIF.

DALI gets none of these files: its libwebp accepts damaged files that PIL's refuses. A WebP has no checksum, so only
decoding shows whether it is whole.
"""

from __future__ import annotations

from struct import Struct

from energon_dali.decode.formats.exif import exif_orientation, xmp_orientation
from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError

_CHUNK = Struct("<4sI").unpack_from
_SIDES = Struct("<HH").unpack_from
_BITS = Struct("<I").unpack_from
_ANIMATION, _XMP, _EXIF, _ALPHA = 0x02, 0x04, 0x08, 0x10


def read_webp(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with "RIFF....WEBP".

    Raises:
        IrregularHeaderError: A chunk reaches past the end, or its stream has an invalid beginning.
        struct.error: The file ends inside the header.
    """
    size = len(data)
    riff_end = 8 + _BITS(data, 4)[0]
    kind, length = _CHUNK(data, 12)
    if riff_end > size or 20 + length > riff_end:
        raise IrregularHeaderError
    if kind == b"VP8X":
        return _read_extended(data, riff_end, length)
    width, height, has_alpha = _stream_size(data, 20, kind, length)
    return ImageHeader("webp", width, height, 4 if has_alpha else 3, has_alpha=has_alpha)


def _read_extended(data: Buffer, riff_end: int, length: int) -> ImageHeader:
    if length != 10:
        raise IrregularHeaderError
    flags = data[20]
    width = 1 + int.from_bytes(data[24:27], "little")
    height = 1 + int.from_bytes(data[27:30], "little")
    orientation, position, frame, exif_blocks, xmp = 0, 30, None, 0, b""
    while position < riff_end:
        kind, length = _CHUNK(data, position)
        if position + 8 + length > riff_end:
            raise IrregularHeaderError
        if kind in (b"VP8 ", b"VP8L") and frame is None:
            frame = _stream_size(data, position + 8, kind, length)
        elif kind == b"EXIF":
            exif_blocks += 1
            if exif_blocks == 1:  # as in libwebp
                orientation, _ = exif_orientation(data, position + 8, position + 8 + length)
        elif kind == b"XMP " and flags & _XMP and not xmp:
            xmp = bytes(data[position + 8 : position + 8 + length])
        position += 8 + length + (length & 1)
    animated = bool(flags & _ANIMATION)
    if not animated and (frame is None or frame[:2] != (width, height)):
        raise IrregularHeaderError
    if bool(exif_blocks) != bool(flags & _EXIF):
        raise IrregularHeaderError
    has_alpha = bool(flags & _ALPHA)
    return ImageHeader(
        "webp",
        width,
        height,
        4 if has_alpha else 3,
        has_alpha=has_alpha,
        orientation=orientation or xmp_orientation(xmp) or 1,
    )


def _stream_size(data: Buffer, position: int, kind: bytes, length: int) -> tuple[int, int, bool]:
    """Returns (width, height, has alpha) of a "VP8 " or "VP8L" chunk whose content begins at `position`."""
    if kind == b"VP8 " and length >= 10:
        key_frame, start_code = not data[position] & 1, bytes(data[position + 3 : position + 6])
        if key_frame and start_code == b"\x9d\x01\x2a":
            width, height = _SIDES(data, position + 6)
            return width & 0x3FFF, height & 0x3FFF, False
    elif kind == b"VP8L" and length >= 5 and data[position] == 0x2F:
        (bits,) = _BITS(data, position + 1)
        if not bits >> 29:
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), bool(bits >> 28 & 1)
    raise IrregularHeaderError


FORMAT = ImageFormat(
    "webp",
    pil_names=("WEBP",),
    suffixes=("webp",),
    signature=rb"RIFF....WEBP",
    read_header=read_webp,
    reads_orientation=True,
)
