"""The orientation tag of an EXIF block."""

from __future__ import annotations

from struct import error as struct_error
from struct import unpack_from

from energon_dali.decode.headers.header import Buffer

_ORIENTATION_TAG = 0x0112
_SHORT = 3


def exif_orientation(data: Buffer, start: int, end: int) -> int:
    """Returns the orientation, 1 to 8, of the TIFF structure in data[start:end]; 1 where there is none that is valid.

    Args:
        data: The file.
        start: Where the TIFF header ("II" or "MM") begins; an "Exif" prefix of six bytes is stepped over.
        end: Where the block ends.
    """
    if data[start : start + 6] == b"Exif\0\0":
        start += 6
    order = bytes(data[start : start + 4])
    if order == b"II*\0":
        byte_order = "<"
    elif order == b"MM\0*":
        byte_order = ">"
    else:
        return 1
    try:
        position = start + unpack_from(byte_order + "I", data, start + 4)[0]
        (count,) = unpack_from(byte_order + "H", data, position)
        if position + 2 + 12 * count > end:
            count = max(0, (end - position - 2) // 12)
        for entry in range(position + 2, position + 2 + 12 * count, 12):
            tag, kind, _, value = unpack_from(byte_order + "HHIH", data, entry)
            if tag == _ORIENTATION_TAG:
                return int(value) if kind == _SHORT and 1 <= value <= 8 else 1
    except struct_error:
        pass
    return 1
