"""Looks at an image's header before any decoder sees the file: what it is, how large, and who may decode it.

Pure Python on purpose: 2 to 5 us for a JPEG, and no call that gives the interpreter lock away (which costs 5 to 10 ms
beside a busy thread). DALI 2.4 ends the process when its parser refuses a file in a batch of 32 or more, so what is
passed on to it (`ImageHeader.dali_decodable`) must be readable for certain. What is unusual is left to PIL.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as struct_error

from energon_dali.decode.headers.bmp import read_bmp
from energon_dali.decode.headers.header import Buffer, ImageHeader, IrregularHeaderError
from energon_dali.decode.headers.jpeg import read_jpeg
from energon_dali.decode.headers.jpeg2000 import CODESTREAM_SIGNATURE, JP2_SIGNATURE, read_jpeg2000
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
_NOT_AN_IMAGE = (IrregularHeaderError, struct_error, IndexError)


def screen_image(
    data: Buffer, *, max_pixels: int = DEFAULT_MAX_PIXELS, max_bytes: int = DEFAULT_MAX_BYTES
) -> ImageHeader:
    """Returns what the header of an image says; the format is recognised by content, never by name.

    Args:
        data: The whole encoded file.
        max_pixels: Largest width x height.
        max_bytes: Largest size of the file.

    Raises:
        DecodeError: This is no image, its header is broken, a side is 0, or it is larger than a limit.
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
    bands = len(image.getbands())
    return ImageHeader(
        _PIL_NAMES.get(name, name.lower()), image.width, image.height, bands, _BITS.get(image.mode, 8),
        image.has_transparency_data,
        color={"P": "palette", "CMYK": "cmyk"}.get(image.mode, "rgb" if bands > 2 else "gray"),
    )  # fmt: skip


def _guess_name(signature: bytes) -> str:
    reader = _find_reader(signature)
    if reader is not None:
        return reader.__name__.removeprefix("read_")
    return "heic" if signature[4:8] == b"ftyp" and signature[8:11] in (b"hei", b"hev", b"mif") else ""
