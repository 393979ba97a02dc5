"""Rewrites the elements of small Matroska files: encryption, which FFmpeg does not write.

Elements: RFC 8794 and RFC 9559.
"""

from __future__ import annotations

from collections.abc import Iterator

SEGMENT, TRACKS, TRACK, TRACK_NUMBER = b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\xae", b"\xd7"
ENCODINGS, ENCODING, ENCODING_TYPE = b"\x6d\x80", b"\x62\x40", b"\x50\x33"
COMPRESSION, ENCRYPTION, ALGORITHM, KEY = b"\x50\x34", b"\x50\x35", b"\x47\xe1", b"\x47\xe2"


def element(kind: bytes, content: bytes) -> bytes:
    """Returns an element with a size of eight bytes."""
    return kind + bytes([1]) + len(content).to_bytes(7, "big") + content


def read_elements(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields (identifier, content) of the elements of known size in the content of another."""
    position = 0
    while position < len(data):
        end = position + 9 - data[position].bit_length()
        kind = data[position:end]
        length = 9 - data[end].bit_length()
        size = int.from_bytes(data[end : end + length], "big") & (1 << 7 * length) - 1
        position = end + length + size
        yield kind, data[end + length : position]


def with_encodings(data: bytes, track: int, encodings: bytes) -> bytes:
    """Returns a Matroska file one of whose tracks has content encodings; offsets in its index are no longer right.

    Args:
        data: The file.
        track: Number of the track.
        encodings: Content of its ContentEncodings element.
    """

    def change(kind: bytes, content: bytes) -> bytes:
        if kind in (SEGMENT, TRACKS):
            content = b"".join(change(*inner) for inner in read_elements(content))
        elif kind == TRACK and int.from_bytes(dict(read_elements(content))[TRACK_NUMBER], "big") == track:
            content += element(ENCODINGS, encodings)
        return element(kind, content)

    return b"".join(change(*inner) for inner in read_elements(data))
