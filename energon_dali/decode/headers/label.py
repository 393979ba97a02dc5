"""An image header as a short label, so that an index can say what a decoder needs to know before it reads the file."""

from __future__ import annotations

from energon_dali.decode.headers.header import ImageHeader


def pack_header(header: ImageHeader) -> str:
    """Returns the label of a header: "png", or for what DALI may decode also "png rgb 8 0 1 whole".

    The words behind the format are colours, bits per channel, whether there is transparency, EXIF orientation, and that
    the file was looked through for damage, which labels without the last word do not promise.
    """
    if not header.dali_decodable:
        return header.format
    return f"{header.format} {header.color} {header.bit_depth} {int(header.has_alpha)} {header.orientation} whole"


def unpack_header(label: str, width: int, height: int) -> ImageHeader | None:
    """Returns the header of a label; None if it does not say that DALI may decode the file.

    Args:
        label: What `pack_header` gave.
        width: Width in pixels as stored.
        height: Height in pixels as stored.
    """
    words = label.split(" ")
    if len(words) != 6:
        return None
    format_, color, bits, alpha, orientation, _ = words
    return ImageHeader(
        format_,
        width,
        height,
        bit_depth=int(bits),
        has_alpha=alpha == "1",
        orientation=int(orientation),
        color=color,
        dali_decodable=True,
    )
