"""Reads the headers of FLAC frames (RFC 9639, 9.1): how many samples they have, and at which sample they start."""

from __future__ import annotations

UNKNOWN = -1
"""Returned where bytes are not the header of a frame."""
LONGEST_HEADER = 16
"""Bytes of the longest header, with its check sum."""
FEWEST_BYTES = 13
"""Fewer bytes are not read as a header; no frame is shorter."""


def count_samples(start: bytes) -> int:
    """Returns the samples of a FLAC frame, `UNKNOWN` if it is not one.

    Args:
        start: Its first 13 bytes or more, or fewer if it is shorter.
    """
    if len(start) < FEWEST_BYTES or start[0] != 0xFF or start[1] & 0xFE != 0xF8:
        return UNKNOWN
    code = start[2] >> 4
    if code == 0:
        return UNKNOWN
    if code not in (6, 7):
        return 192 if code == 1 else 576 << code - 2 if code < 6 else 256 << code - 8
    at = max(4 + _number_length(start), 5)
    return int.from_bytes(start[at : at + code - 5], "big") + 1


def find_samples(start: bytes, block: int) -> tuple[int, int] | None:
    """Returns (first sample, number of samples) of a FLAC frame, None if its header or the check sum of it is wrong.

    Args:
        start: Its first `LONGEST_HEADER` bytes, or fewer if it is shorter.
        block: Samples of the frames of a stream whose frames all have as many, except for the last.
    """
    samples = count_samples(start)
    length = _number_length(start) if samples != UNKNOWN else 0
    if not 0 < length < 8:
        return None
    number = start[4] & (0x7F if length == 1 else 0xFF >> length + 1)
    for byte in start[5 : 4 + length]:
        number = number << 6 | byte & 0x3F
    size_bytes = {6: 1, 7: 2}.get(start[2] >> 4, 0)
    rate_bytes = {12: 1, 13: 2, 14: 2}.get(start[2] & 15, 0)
    end = 4 + length + size_bytes + rate_bytes
    if end >= len(start) or _check_sum(start[:end]) != start[end]:
        return None
    return (number if start[1] & 1 else number * block), samples


def _number_length(start: bytes) -> int:
    """Returns the bytes of the frame number, as long as the UTF-8 character that begins with its first byte."""
    length = 0
    while start[4] << length & 0x80:
        length += 1
    return max(length, 1)


def _check_sum(data: bytes) -> int:
    """Returns the CRC-8 of a header, with the polynomial 0x07."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value << 1 ^ (0x07 if value & 0x80 else 0)) & 0xFF
    return value
