"""Reads an image's header before any decoder sees the file: the format, the size, and who may decode it.

Pure Python on purpose: 2 to 5 us for a JPEG, and no call that releases the interpreter lock (getting it back takes 5 to
10 ms next to a busy thread). DALI 2.4 ends the process if its parser refuses a file in a batch of 32 or more, so only
files that are certainly readable may reach it (`ImageHeader.dali_decodable`). Unusual files are left to PIL.
"""

from __future__ import annotations

from struct import error as struct_error

from PIL import Image

from energon_dali.decode import formats
from energon_dali.decode.formats import Buffer, ImageFormat, ImageHeader, IrregularHeaderError
from energon_dali.decode.pil import open_image
from energon_dali.decode.spec import DEFAULT_MAX_BYTES, DEFAULT_MAX_PIXELS
from energon_dali.errors import DecodeError

_BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}
"""Bits per channel by PIL's mode."""
_HARMLESS_PIXELS = 1 << 24
"""Files of at most this size are left to their decoder, which finds out at small cost that pixels are missing."""
_ORIENTATION_TAG, _ORIENTATIONS = 0x0112, range(1, 9)
_NOT_UNDERSTOOD = (IrregularHeaderError, struct_error, IndexError)


def screen_image(
    data: Buffer, *, max_pixels: int = DEFAULT_MAX_PIXELS, max_bytes: int = DEFAULT_MAX_BYTES, for_dali: bool = True
) -> ImageHeader:
    """Returns what the header of an image says. The format is recognised by content, never by name.

    Args:
        data: The whole encoded file.
        max_pixels: Largest width x height.
        max_bytes: Largest size of the file.
        for_dali: Whether to look for damage after the header too, which decides `dali_decodable`. If PIL decodes the
            file anyway, False saves about 10 us for a JPEG of 80 KB.

    Raises:
        DecodeError: This is not an image, its header is broken, a side is 0, or it is larger than a limit.
    """
    if len(data) > max_bytes:
        raise DecodeError(f"The file has {len(data):,} bytes, the limit max_bytes is {max_bytes:,}", route="screen")
    match = formats.SIGNATURES.match(data)
    known = None if match is None else formats.FORMATS[match.lastgroup or ""]
    try:
        if known is None or known.read_header is None:
            raise IrregularHeaderError
        header = known.read_header(data)
    except _NOT_UNDERSTOOD:
        header = _open_with_pil(data, known)
    width, height = header.width, header.height
    if not 0 < width * height <= max_pixels or width <= 0:
        wrong = "nothing to decode" if width * height <= 0 else f"more than the limit max_pixels={max_pixels:,}"
        raise DecodeError(f"The header says {width} x {height} pixels, {wrong}", header.format, "screen")
    if for_dali and header.dali_decodable and known is not None and known.is_whole is not None:
        header.dali_decodable = known.is_whole(data)
    return header


def _open_with_pil(data: Buffer, recognised: ImageFormat | None) -> ImageHeader:
    """Returns the header as PIL reads it. Never one that DALI may decode.

    Args:
        data: The file.
        recognised: The format by its signature, for messages.
    """
    if not len(data):
        raise DecodeError("The file is empty", route="screen")
    try:
        image = open_image(data)
    except DecodeError as error:
        name = "" if recognised is None else recognised.name
        raise DecodeError(error.reason, error.format or name, "screen") from error
    pil_name = image.format or ""
    format = formats.PIL_NAMES.get(pil_name.upper()) or ImageFormat(pil_name.lower())
    width, height = image.size
    if format.swaps_sides is not None and format.swaps_sides(image):
        width, height = height, width
    if width * height > max(len(data) * format.pixel_bound(image.info.get("compression")), _HARMLESS_PIXELS):
        raise DecodeError(
            f"{len(data):,} bytes cannot hold {width} x {height} pixels: its header is broken", format.name, "screen"
        )
    bands = len(image.getbands())
    # A palette image without its palette is black to PIL, which cannot say whether it is transparent.
    has_alpha = image.has_transparency_data if image.mode != "P" or image.palette is not None else False
    color = {"P": "palette", "CMYK": "cmyk"}.get(image.mode, "rgb" if bands > 2 else "gray")
    turn = _orientation(image, format)
    return ImageHeader(format.name, width, height, bands, _BITS.get(image.mode, 8), has_alpha, turn, color)


def _orientation(image: Image.Image, format: ImageFormat) -> int:
    """Returns the EXIF orientation of an opened image as PIL finds it; 1 if PIL turns the image when it loads it."""
    if format.swaps_sides is not None:
        return 1
    try:
        orientation = Image.Image.getexif(image).get(_ORIENTATION_TAG)  # that of a PNG would load the pixels
    except Exception:  # broken metadata
        return 1
    return orientation if isinstance(orientation, int) and orientation in _ORIENTATIONS else 1
