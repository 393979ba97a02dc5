"""Reads the packets of an Ogg file with one stream, and writes others (RFC 3533), one page each."""

from __future__ import annotations

import struct

HEADERS = 3
"""Packets of Theora and Vorbis before the first frame."""


def read_packets(data: bytes) -> list[bytes]:
    """Returns the packets of an Ogg file of one stream."""
    packets, packet, at = [], b"", 0
    while at < len(data):
        count = data[at + 26]
        lengths = data[at + 27 : at + 27 + count]
        at += 27 + count
        for length in lengths:
            packet += data[at : at + length]
            at += length
            if length < 255:
                packets.append(packet)
                packet = b""
    return packets


def write_theora(packets: list[bytes]) -> bytes:
    """Returns an Ogg file of the headers and frames of a Theora stream; an empty frame repeats the one before it."""
    headers, frames = packets[:HEADERS], packets[HEADERS:]
    shift = (headers[0][40] & 3) << 3 | headers[0][41] >> 5  # of the key frame's number in a granule position
    pages = [_page(header, 0, number, 2 * (number == 0)) for number, header in enumerate(headers)]
    key = 0
    for number, frame in enumerate(frames):
        if frame and not frame[0] & 0x40:
            key = number
        position = (key + 1 << shift) + number - key
        pages.append(_page(frame, position, HEADERS + number, 4 * (number == len(frames) - 1)))
    return b"".join(pages)


def write_vorbis(packets: list[bytes], ends: list[int]) -> bytes:
    """Returns an Ogg file of the headers and packets of a Vorbis stream.

    Args:
        packets: Headers and packets.
        ends: How many samples the stream has after each packet, without the headers.
    """
    positions = [0] * HEADERS + ends
    flags = [2] + [0] * (len(packets) - 2) + [4]
    return b"".join(_page(*page) for page in zip(packets, positions, range(len(packets)), flags, strict=True))


def _page(packet: bytes, position: int, number: int, flags: int) -> bytes:
    lengths = bytes([255] * (len(packet) // 255) + [len(packet) % 255])
    page = b"OggS" + struct.pack("<BBqIIIB", 0, flags, position, 7, number, 0, len(lengths)) + lengths + packet
    return page[:22] + struct.pack("<I", _checksum(page)) + page[26:]


def _checksum(page: bytes) -> int:
    value = 0
    for byte in page:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x104C11DB7) if value & 0x80000000 else value << 1
    return value
