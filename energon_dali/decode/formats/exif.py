"""Reads the orientation in an EXIF block or an XMP document."""

from __future__ import annotations

import re
from struct import error as struct_error
from struct import unpack_from

from energon_dali.decode.formats.image_format import Buffer

_ORIENTATION_TAG = 0x0112
_RESOLUTION_TAG = 0x011A
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_SHORT = 3
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
"""Bytes of a value of each type."""
_RATIONAL = 5
_FRACTIONS = {0x011A: 1, 0x011B: 1, 0x013E: 2, 0x013F: 6, 0x0211: 3, 0x0214: 6}
"""Tags that DALI reads as this many fractions, whatever their type says."""


def exif_orientation(data: Buffer, start: int, end: int) -> tuple[int, bool]:
    """Returns the orientation of the TIFF structure in data[start:end], and whether all readers find the same.

    The orientation is 1 to 8, 1 if it is invalid, and 0 if there is none. DALI 2.4 accepts values of any type. If the
    tag occurs twice, DALI mixes both values and writes past the end of its memory (SIGSEGV), so it must not get the
    file.

    Args:
        data: The file.
        start: Where the TIFF header ("II" or "MM") begins; an "Exif" prefix of six bytes is skipped.
        end: Where the block ends.
    """
    prefixed = data[start : start + 6] == b"Exif\0\0"
    if prefixed:  # PIL skips it, DALI finds no orientation
        start += 6
    order = bytes(data[start : start + 4])
    if order == b"II*\0":
        byte_order = "<"
    elif order == b"MM\0*":
        byte_order = ">"
    else:
        return 0, False
    orientation, found, regular = 0, 0, True
    try:
        position = start + unpack_from(byte_order + "I", data, start + 4)[0]
        (count,) = unpack_from(byte_order + "H", data, position)
        regular = start + 8 <= position <= end - 6 - 12 * count and (position - start) % 2 == 0
        if position + 2 + 12 * count > end:
            count = max(0, (end - position - 2) // 12)
        entries = range(position + 2, position + 2 + 12 * count, 12)
        for entry in entries:
            tag, kind, values, value = unpack_from(byte_order + "HHIH", data, entry)
            if tag == _RESOLUTION_TAG:  # as something else, PIL may refuse the file
                regular = regular and (kind, values) == (_RATIONAL, 1)
            if tag == _ORIENTATION_TAG:
                found += 1
                regular = regular and found == 1 and kind == _SHORT and values == 1
                if found == 1:
                    orientation = int(value) if kind == _SHORT and 1 <= value <= 8 else 1
        if orientation > 1:  # DALI stops at an entry that it does not understand
            regular = regular and all(_is_sound(data, entry, start, end, byte_order) for entry in entries)
    except struct_error:
        regular = False
    return orientation, regular and not prefixed


def xmp_orientation(document: bytes) -> int:
    """Returns the orientation in an XMP document, as PIL finds it; 0 if there is none.

    EXIF takes precedence: this counts only if `exif_orientation` finds none.
    """
    found = _XMP_ORIENTATION.search(document)
    if found is None:
        return 0
    value = int(found[1])
    return value if 1 <= value <= 8 else 1


def _is_sound(data: Buffer, entry: int, start: int, end: int, byte_order: str) -> bool:
    tag, kind, values, where = unpack_from(byte_order + "HHII", data, entry)
    if tag in _FRACTIONS and (kind, values) != (_RATIONAL, _FRACTIONS[tag]):
        return False
    size = values * _SIZES.get(kind, end)
    return 0 < size <= 4 or (kind in _SIZES and size > 4 and start + where + size <= end)
