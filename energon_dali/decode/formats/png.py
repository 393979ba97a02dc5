"""PNG: reads the header and all chunks to the end, so that truncated files are found before any decoder sees them.

DALI (libpng) reports damaged pixels as PIL does, but ignores damage in other chunks, which PIL refuses.
"""

from __future__ import annotations

import zlib
from struct import Struct

from PIL import Image

from energon_dali.decode.formats.exif import exif_orientation, xmp_orientation
from energon_dali.decode.formats.image_format import Buffer, ImageFormat, ImageHeader, IrregularHeaderError
from energon_dali.errors import DecodeError

_CHUNK = Struct(">I4s").unpack_from
_SUM = Struct(">I").unpack_from
_IHDR = Struct(">IIBBBBB").unpack_from
_LARGEST = 2**31 - 1
_COLORS = {0: ("gray", 1), 2: ("rgb", 3), 3: ("palette", 1), 4: ("gray", 2), 6: ("rgb", 4)}
_MOST_BYTES_PER_BYTE = 1033
"""Deflate packs 258 bytes into two bits at best."""
_TRANSPARENCY_BYTES = {0: 2, 2: 6}
_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_LENGTHS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
_FREE = frozenset({b"bKGD", b"sBIT", b"hIST", b"sPLT"})
_LARGEST_TEXT_BYTES = 1 << 20
"""PIL refuses a chunk that unpacks to more."""
_EXIF, _RAW_PROFILE, _XMP = b"exif", b"Raw profile type exif", b"XML:com.adobe.xmp"

MOST_PLAIN_BYTES = 1 << 16
"""Largest file that `open_plain_png` tries: in larger ones the pixels take most of the time, and are often in several
chunks."""
_MOST_PLAIN_PIXELS = 1 << 20
_PLAIN_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PLAIN_END = b"\0\0\0\0IEND"
_HEADER_END = 33
_CONTENT = 41
_PLAIN_MODES = {b"\x08\0\0\0\0": "L", b"\x08\x02\0\0\0": "RGB", b"\x08\x06\0\0\0": "RGBA"}
"""Mode by the header's bytes after the size: 8 bits per channel, not interlaced."""


def read_png(data: Buffer) -> ImageHeader:
    """Returns the header of a file that begins with the PNG signature.

    Raises:
        IrregularHeaderError: A chunk reaches past the end, or a required one is missing.
        struct.error: The file ends inside a chunk.
        DecodeError: The file is too short for its size.
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
    metadata, position = _Metadata(), 8
    while True:
        length, kind = _CHUNK(data, position)
        end = position + 12 + length
        if end > size or length > _LARGEST:
            raise IrregularHeaderError
        if kind == b"IDAT":
            pixels = True
        else:
            content = bytes(data[position + 8 : end - 4])
            metadata.plain &= _has_valid_checksum(data, kind, content, end)
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
    # 16 bits: DALI scales to 8, PIL clips or rounds differently.
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


def _has_valid_checksum(data: Buffer, kind: bytes, content: bytes, end: int) -> bool:
    checksum: int = _SUM(data, end - 4)[0]
    return zlib.crc32(content, zlib.crc32(kind)) == checksum


class _Metadata:
    """Reads the chunks besides size, palette, transparency and pixels, one by one, in order."""

    def __init__(self) -> None:
        self.plain = True
        """Whether PIL and DALI certainly accept all chunks so far."""
        self._exif: bytes | None = None
        self._exif_blocks = 0
        self._texts: dict[bytes, bytes] = {}

    def add(self, kind: bytes, content: bytes) -> None:
        """Reads one chunk."""
        if kind == b"eXIf":
            self._exif = content
            self._exif_blocks += 1
        elif kind in _TEXTS:
            self._add_text(kind, content)
        elif kind == b"iCCP":
            packed = content.partition(b"\0")[2]
            self.plain &= packed[:1] == b"\0" and _unpack(packed[1:]) is not None
        elif kind in _LENGTHS:
            self.plain &= len(content) == _LENGTHS[kind]
        else:
            self.plain &= kind in _FREE

    def orientation(self) -> tuple[int, bool]:
        """Returns the orientation as PIL finds it, 1 to 8, and whether DALI finds the same.

        EXIF takes precedence (in its own chunk, or in a text of that name), then what ImageMagick writes, then XMP.
        """
        stated, for_dali, regular = 0, 1, self._exif_blocks < 2
        if self._exif is not None:
            stated, alike = exif_orientation(self._exif, 0, len(self._exif))
            for_dali = stated or 1
            regular &= alike
        elif _RAW_PROFILE in self._texts:
            content = _from_hexadecimal(self._texts[_RAW_PROFILE])
            stated, _ = exif_orientation(content, 0, len(content))
        if not stated and _XMP in self._texts:
            stated = xmp_orientation(self._texts[_XMP])
        # DALI handles several EXIF blocks as it does several orientations in one.
        return stated or 1, regular and (stated or 1) == for_dali

    def _add_text(self, kind: bytes, content: bytes) -> None:
        name, _, text = content.partition(b"\0")
        if kind == b"tEXt" and name == _EXIF:
            self._exif = text
            self.plain = False
        packed = kind == b"zTXt"
        if kind == b"iTXt":
            flags, text = text[:2], text[2:].partition(b"\0")[2].partition(b"\0")[2]  # after two names
            packed = flags[:1] not in (b"", b"\0")
            self.plain &= not packed or flags[1:] == b"\0"
        elif packed:
            self.plain &= text[:1] in (b"", b"\0")
            text = text[1:]
        unpacked = _unpack(text) if packed else text
        self.plain &= unpacked is not None and len(unpacked) <= _LARGEST_TEXT_BYTES
        if name in (_RAW_PROFILE, _XMP) and unpacked is not None:
            self._texts[name] = unpacked


def _unpack(packed: bytes) -> bytes | None:
    """Returns a compressed text as PIL unpacks it; None if PIL refuses it because of its size."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(packed, _LARGEST_TEXT_BYTES)
    except zlib.error:
        return b""
    return None if unpacker.unconsumed_tail else unpacked


def _from_hexadecimal(text: bytes) -> bytes:
    """Returns the content of a profile in ImageMagick's form: three header lines, then hexadecimal digits."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""


def open_plain_png(data: Buffer) -> Image.Image | None:
    """Returns a loaded image, as PIL would load it; None if PIL has to read the file.

    Most programs write a header, one chunk of pixels, and the end. For 32 x 32 pixels PIL's reader of chunks, which is
    written in Python, takes twice as long as unpacking the pixels. PIL's own decoder unpacks them here too, so the
    pixels are the same. Whatever is not plain, or damaged, is left to PIL.

    Args:
        data: The encoded file.
    """
    size = len(data)
    if not _CONTENT < size <= MOST_PLAIN_BYTES:
        return None
    data = bytes(data)
    mode = _PLAIN_MODES.get(data[24:29])
    if mode is None or not data.startswith(_PLAIN_START) or _SUM(data, 29)[0] != zlib.crc32(data[12:29]):
        return None
    length, kind = _CHUNK(data, _HEADER_END)
    end = _CONTENT + length
    if kind != b"IDAT" or end + 16 != size or not data.startswith(_PLAIN_END, end + 4):
        return None
    width, height, *_ = _IHDR(data, 16)
    if not 0 < width * height <= _MOST_PLAIN_PIXELS:
        return None
    try:
        return Image.frombytes(mode, (width, height), data[_CONTENT:end], "zip", mode, False)
    except (TypeError, ValueError, OSError):  # pixels are missing or damaged, or another release of PIL
        return None


FORMAT = ImageFormat(
    "png",
    pil_names=("PNG",),
    suffixes=("png", "apng"),
    signature=rb"\x89PNG\r\n\x1a\n",
    read_header=read_png,
    reads_orientation=True,
    max_pixels_per_byte=8 * _MOST_BYTES_PER_BYTE,
)
