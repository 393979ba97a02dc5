"""Looks at an image's header before any decoder sees the file: what it is, how large, and who may decode it.

Pure Python on purpose: 2 to 5 us for a JPEG, and no call that gives the interpreter lock away (which costs 5 to 10 ms
beside a busy thread). DALI 2.4 ends the process when its parser refuses a file in a batch of 32 or more, so what is
passed on to it (`ImageHeader.dali_decodable`) must be readable for certain. What is unusual is left to PIL.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from struct import error as struct_error

from PIL import Image

from energon_dali.decode.headers.bmp import read_bmp
from energon_dali.decode.headers.exif import xmp_orientation
from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError
from energon_dali.decode.headers.jpeg import read_jpeg
from energon_dali.decode.headers.jpeg2000 import CODESTREAM_SIGNATURE, JP2_SIGNATURE, read_jpeg2000
from energon_dali.decode.headers.jpeg_scans import has_whole_scans
from energon_dali.decode.headers.png import SIGNATURE as PNG_SIGNATURE
from energon_dali.decode.headers.png import read_png
from energon_dali.decode.headers.pnm import read_pnm
from energon_dali.decode.headers.tiff import read_tiff
from energon_dali.decode.headers.webp import read_webp
from energon_dali.decode.pil import open_image
from energon_dali.decode.spec import DEFAULT_MAX_BYTES, DEFAULT_MAX_PIXELS
from energon_dali.errors import DecodeError

_PIL_NAMES = {"JPEG": "jpeg", "MPO": "jpeg", "PPM": "pnm", "JPEG2000": "jpeg2000", "DIB": "bmp"}
_BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}
_HARMLESS_PIXELS = 1 << 24
"""Files of at most this size are left to their decoder, which finds out at small cost that pixels are missing."""
_PIXELS_PER_BYTE = {"JPEG": 2048, "MPO": 2048, "PNG": 8 * 1033, "PPM": 8}
"""By PIL's format, at the fewest bits per pixel; `headers` has closer bounds for usual files."""
_TIFF_PIXELS_PER_BYTE = {
    "raw": 8,
    "packbits": 8 * 64,
    "tiff_lzw": 8 * 2731,
    "tiff_adobe_deflate": 8 * 1033,
    "tiff_deflate": 8 * 1033,
    "jpeg": 2048,
}
_ORIENTATION = 0x0112
_NOT_AN_IMAGE = (IrregularHeaderError, struct_error, IndexError)


def screen_image(
    data: Buffer, *, max_pixels: int = DEFAULT_MAX_PIXELS, max_bytes: int = DEFAULT_MAX_BYTES, for_dali: bool = True
) -> ImageHeader:
    """Returns what the header of an image says; the format is recognised by content, never by name.

    Args:
        data: The whole encoded file.
        max_pixels: Largest width x height.
        max_bytes: Largest size of the file.
        for_dali: Whether to look for damage behind the header too, which decides `dali_decodable`. Where PIL decodes
            anyway, False saves about 10 us for a JPEG of 80 KB.

    Raises:
        DecodeError: This is not an image, its header is broken, a side is 0, or it is larger than a limit.
    """
    if len(data) > max_bytes:
        raise DecodeError(f"The file has {len(data):,} bytes, the limit max_bytes is {max_bytes:,}", route="screen")
    signature = bytes(data[:12])
    reader = _find_reader(signature)
    try:
        if reader is None:
            raise IrregularHeaderError
        header = reader(data)
    except _NOT_AN_IMAGE:
        header = _open_with_pil(data, signature)
    width, height = header.width, header.height
    if not 0 < width * height <= max_pixels or width <= 0:
        wrong = "nothing to decode" if width * height <= 0 else f"more than the limit max_pixels={max_pixels:,}"
        raise DecodeError(f"The header says {width} x {height} pixels, {wrong}", header.format, "screen")
    if for_dali and header.format == "jpeg" and header.dali_decodable:
        header.dali_decodable = has_whole_scans(data)
    return header


def _find_reader(signature: bytes) -> Callable[[Buffer], ImageHeader] | None:
    """Returns the strict reader of the format that begins like this, if there is one."""
    if signature[:3] == b"\xff\xd8\xff":
        return read_jpeg
    if signature[:8] == PNG_SIGNATURE:
        return read_png
    if signature[:4] == b"RIFF" and signature[8:] == b"WEBP":
        return read_webp
    if signature[:4] in (b"II*\0", b"MM\0*"):
        return read_tiff
    if signature[:2] == b"BM":
        return read_bmp
    if signature[:1] == b"P" and signature[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6"):
        return read_pnm
    if signature == JP2_SIGNATURE or signature[:4] == CODESTREAM_SIGNATURE:
        return read_jpeg2000
    return None


def _open_with_pil(data: Buffer, signature: bytes) -> ImageHeader:
    """Returns the header as PIL reads it; never one that DALI may decode."""
    if not signature:
        raise DecodeError("The file is empty", route="screen")
    try:
        image = open_image(data)
    except DecodeError as error:
        raise DecodeError(error.reason, error.format or _guess_name(signature), "screen") from error
    name = image.format or ""
    width, height = image.size
    if name == "TIFF" and _turns_by_xmp(image):
        width, height = height, width
    if width * height > max(len(data) * _most_pixels_per_byte(image), _HARMLESS_PIXELS):
        raise DecodeError(
            f"{len(data):,} bytes cannot hold {width} x {height} pixels: its header is broken",
            _PIL_NAMES.get(name, name.lower()),
            "screen",
        )
    bands = len(image.getbands())
    # A palette image without its palette is black to PIL, which cannot say whether it is transparent.
    has_alpha = image.has_transparency_data if image.mode != "P" or image.palette is not None else False
    return ImageHeader(
        _PIL_NAMES.get(name, name.lower()),
        width,
        height,
        bands,
        _BITS.get(image.mode, 8),
        has_alpha,
        color={"P": "palette", "CMYK": "cmyk"}.get(image.mode, "rgb" if bands > 2 else "gray"),
    )


def _turns_by_xmp(image: Image.Image) -> bool:
    """Returns whether PIL will find the sides of a TIFF to be swapped only when it loads it."""
    xmp = image.info.get("xmp")
    return _ORIENTATION not in getattr(image, "tag_v2", ()) and isinstance(xmp, bytes) and xmp_orientation(xmp) >= 5


def _most_pixels_per_byte(image: Image.Image) -> float:
    """Returns how many pixels a byte of a file holds at best; infinite where a format sets no bound.

    GIF and WebP fill what no frame covers, JPEG 2000, AVIF and CCITT's fax code spend next to nothing on a plain area.
    """
    compression = image.info.get("compression")
    if image.format == "BMP" or image.format == "DIB":
        return 8 if compression == 0 else inf
    if image.format == "TIFF":
        return _TIFF_PIXELS_PER_BYTE.get(str(compression), inf)
    return _PIXELS_PER_BYTE.get(image.format or "", inf)


def _guess_name(signature: bytes) -> str:
    reader = _find_reader(signature)
    if reader is not None:
        return reader.__name__.removeprefix("read_")
    return "heic" if signature[4:8] == b"ftyp" and signature[8:11] in (b"hei", b"hev", b"mif") else ""
