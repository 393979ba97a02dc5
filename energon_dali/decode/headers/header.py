"""What the header of an image says, as far as decoding needs it."""

from __future__ import annotations

from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class ImageHeader:
    """Facts from an image's header; made without decoding a pixel."""

    format: str
    """"jpeg", "png", "webp", "bmp", "tiff", "pnm", "jpeg2000", or PIL's name in lower case ("gif", "avif", ...)."""
    width: int
    """Width in pixels as stored; of a TIFF as PIL gives it, which applies the orientation itself."""
    height: int
    """Height in pixels, likewise."""
    channels: int = 3
    """Channels as stored, alpha included; 1 for a palette."""
    bit_depth: int = 8
    """Bits per channel."""
    has_alpha: bool = False
    """Whether the file carries transparency: an alpha channel, or a transparent colour or palette entry."""
    orientation: int = 1
    """EXIF orientation, 1 to 8, of JPEG, PNG and WebP; 1 where there is none or it is out of range."""
    color: str = "rgb"
    """Colours as stored: "gray", "rgb", "ycc", "cmyk", "ycck", "palette"."""
    subsampling: str = ""
    """Of a JPEG: "444", "422", "420", "411", "410", "440", "gray", or "other"; else ""."""
    progressive: bool = False
    """Whether a JPEG has several scans (SOF2)."""
    dali_decodable: bool = False
    """Whether DALI takes the file for certain, its RGB equals PIL's, and nothing looks damaged; PIL decodes all others.

    DALI 2.4 crashes when a batch holds a file that its parser refuses, so this errs on the side of PIL."""


class IrregularHeaderError(Exception):
    """A strict reader met something unusual or broken: PIL shall say what the file is."""
