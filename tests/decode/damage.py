"""Damages good images in realistic ways, identically on every machine."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random

from tests.decode.mutations import mutate


def damage(data: bytes, random: Random) -> bytes:
    """Returns a file that is truncated, overwritten, or assembled wrongly; occasionally one that is still good."""
    way: Callable[[bytes, Random], bytes] = random.choices(
        (_cut, _cut_and_end, _flip, _overwrite, _drop, _append, _edit_parts, mutate), (3, 3, 5, 3, 2, 1, 5, 3)
    )[0]
    return way(data, random)


def _cut(data: bytes, random: Random) -> bytes:
    """Returns the file without its end, as after an interrupted download."""
    if random.random() < 0.5:
        return data[: len(data) - random.randrange(1, min(len(data), 40))]
    return data[: random.randrange(len(data))]


def _cut_and_end(data: bytes, random: Random) -> bytes:
    """Returns the file without its last part, but with its last bytes: a JPEG keeps its EOI, a PNG its IEND."""
    tail = {b"\xff\xd8": 2, b"\x89P": 12}.get(data[:2], 8)
    return _cut(data[:-tail], random) + data[-tail:]


def _flip(data: bytes, random: Random) -> bytes:
    """Returns the file with some random bits or bytes changed."""
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 20))):
        position = random.randrange(len(content))
        content[position] = random.choice(
            (content[position] ^ 1 << random.randrange(8), random.randrange(256), 0xFF, 0)
        )
    return bytes(content)


def _overwrite(data: bytes, random: Random) -> bytes:
    """Returns the file with a range of zeros, of ones, or of its own bytes from elsewhere, as after a lost sector."""
    size = min(len(data) // 2, random.choice((2, 16, 100, 512, 4096)))
    start, other = random.randrange(len(data) - size), random.randrange(len(data) - size)
    return (
        data[:start] + random.choice((bytes(size), b"\xff" * size, data[other : other + size])) + data[start + size :]
    )


def _drop(data: bytes, random: Random) -> bytes:
    """Returns the file with a range missing or doubled."""
    size = min(len(data) // 2, random.choice((1, 2, 16, 100, 512, 4096)))
    start = random.randrange(len(data) - size)
    if random.random() < 0.5:
        return data[:start] + data[start + size :]
    return data[: start + size] + data[start:]


def _append(data: bytes, random: Random) -> bytes:
    """Returns the file with something after its end."""
    return data + random.choice((b"\0" * 7, b"\xff\xd9", data[-200:], data, random.randbytes(30)))


def _edit_parts(data: bytes, random: Random) -> bytes:
    """Returns the file with one of its chunks or segments changed, dropped, doubled or moved; checksums are
    corrected."""
    if data[:2] == b"\xff\xd8":
        return random.choice((_edit_jpeg, _edit_jpeg, _add_segments))(data, random)
    if data[:4] == b"\x89PNG":
        return _edit_png(data, random)
    if data[:4] == b"RIFF":
        return _edit_webp(data, random)
    return _flip(data, random)


def _edit_list(parts: list[bytes], random: Random, change: Callable[[bytes], bytes]) -> list[bytes]:
    position, other = random.randrange(len(parts)), random.randrange(len(parts))
    way = random.randrange(5)
    if way == 0:
        return parts[:position] + parts[position + 1 :]
    if way == 1:
        return [*parts[:position], parts[other], *parts[position:]]
    if way == 2:
        parts = list(parts)
        parts[position], parts[other] = parts[other], parts[position]
        return parts
    return [*parts[:position], change(parts[position]), *parts[position + 1 :]]


def _edit_jpeg(data: bytes, random: Random) -> bytes:
    """Each marker begins a part: entropy-coded data belongs to its scan, and restarts are separate parts."""
    starts = [0]
    position = 2
    while (position := data.find(b"\xff", position)) >= 0:
        if data[position + 1 : position + 2] not in (b"\0", b"\xff", b""):
            starts.append(position)
            if 0xC0 <= data[position + 1] < 0xD0 or data[position + 1] >= 0xDA:
                position += max(0, int.from_bytes(data[position + 2 : position + 4], "big") - 1)
        position += 2
    parts = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]

    def change(part: bytes) -> bytes:
        way = random.randrange(4)
        if way == 0:  # another marker
            return (
                part[:1]
                + bytes(
                    [
                        random.choice(
                            (
                                0x01,
                                0x3F,
                                0xC0,
                                0xC4,
                                0xCC,
                                0xD0,
                                0xD3,
                                0xD8,
                                0xD9,
                                0xDC,
                                0xE5,
                                0xF7,
                                random.randrange(1, 256),
                            )
                        )
                    ]
                )
                + part[2:]
            )
        if way == 1:
            return part[: random.randrange(len(part) + 1)]
        if way == 2:  # a marker within
            middle = random.randrange(len(part) + 1)
            marker = random.choice((0xD9, 0xD0, 0xD7, 0xDA, 0x01, 0x02, 0xFF, 0xC4, random.randrange(256)))
            return part[:middle] + bytes([0xFF, marker]) + part[middle:]
        return _flip(part, random) if part else part

    return b"".join(_edit_list(parts, random, change))


def _add_segments(data: bytes, random: Random) -> bytes:
    """Returns a JPEG with some more segments that decoders read, often cut or damaged, with a matching length."""
    for _ in range(random.choice((1, 1, 2))):
        starts = [2]
        while data[starts[-1] : starts[-1] + 1] == b"\xff" and data[starts[-1] + 1] != 0xDA:
            starts.append(starts[-1] + 2 + int.from_bytes(data[starts[-1] + 2 : starts[-1] + 4], "big"))
        place = random.choice(starts)
        kind, content = random.choice(SEGMENTS)
        way = random.randrange(4)
        if way < 2:
            content = content[: random.randrange(len(content) + 1)]
        elif way == 2:
            content = _flip(content, random)
        data = data[:place] + bytes([0xFF, kind]) + struct.pack(">H", len(content) + 2) + content + data[place:]
    return data


def _directory(*entries: tuple[int, int, int, int], rest: bytes = b"") -> bytes:
    """Returns a TIFF structure of (tag, type, count, value) entries, as in EXIF and in MPF, and what follows it."""
    rows = b"".join(struct.pack(">HHII", *entry) for entry in entries)
    return b"MM\0*" + struct.pack(">IH", 8, len(entries)) + rows + bytes(4) + rest


_RESOURCE = b"8BIM" + struct.pack(">HHI", 0x0404, 0, 5) + b"title\0"
_RESOLUTION = b"8BIM" + struct.pack(">HHI", 0x03ED, 0, 16) + struct.pack(">IHHIHH", 72 << 16, 1, 1, 72 << 16, 1, 1)
SEGMENTS = (
    (0xE0, b"JFIF\0\1\2\1\0\x48\0\x48\0\0"),
    (0xE0, b"JFXX\0\x10"),
    (
        0xE1,
        b"Exif\0\0" + _directory((0x0112, 3, 1, 6 << 16), (0x011A, 5, 1, 50), (0x0128, 3, 1, 2 << 16), rest=bytes(9)),
    ),
    (0xE1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="3" hdrgm:Version="1.0"/>'),
    (0xE2, b"ICC_PROFILE\0\1\1" + bytes(24)),
    (0xE2, b"FPXR\0\0\0"),
    (0xE2, b"MPF\0" + _directory((0xB000, 7, 4, 0x30313030), (0xB001, 4, 1, 2), (0xB002, 7, 32, 50), rest=bytes(32))),
    (0xED, b"Photoshop 3.0\0" + _RESOURCE + _RESOLUTION + _RESOURCE),
    (0xEE, b"Adobe\0\x64\0\0\0\0\1"),
    (0xFE, b"a comment"),
    (0xDB, b"\1" + bytes(range(1, 65)) + b"\x12" + bytes(128)),
    (0xDC, b"\0\x76"),
    (0xDD, b"\0\0"),
    (0xDE, struct.pack(">BHHB", 8, 118, 157, 1) + b"\1\x11\0"),
)
"""Marker and content of segments that libjpeg or PIL read, except the frame, the tables of codes and the scans."""


def _edit_png(data: bytes, random: Random) -> bytes:
    chunks: list[bytes] = []
    position = 8
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        chunks.append(data[position + 4 : end - 4])
        position = end

    def change(chunk: bytes) -> bytes:
        kind, content = chunk[:4], chunk[4:]
        way = random.randrange(5)
        if kind == b"IDAT" and way == 0 and content:  # other pixels, packed rightly
            rows = zlib.decompress(content) if content[:1] == b"\x78" and len(chunks) == 3 else b""
            if rows:
                return kind + zlib.compress(
                    random.choice((rows[: len(rows) // 2], rows[:-1], rows + rows[:9], _flip(rows, random)))
                )
        if way == 1:
            return random.choice((b"tEXt", b"abCD", b"ABCD", b"IDAT", b"iCCP", b"tRNS", b"fcTL", b"zTXt")) + content
        if way == 2:
            return kind + content[: random.randrange(len(content) + 1)]
        return kind + (_flip(content, random) if content else b"\0")

    edited = _edit_list(chunks, random, change)
    if random.random() < 0.3:  # pixels in several chunks
        edited = [
            piece
            for chunk in edited
            for piece in (
                [chunk[:4] + chunk[i : i + 1000] for i in range(4, len(chunk), 1000)]
                if chunk[:4] == b"IDAT"
                else [chunk]
            )
        ]
    wrong = random.randrange(len(edited)) if edited and random.random() < 0.2 else -1
    return data[:8] + b"".join(
        struct.pack(">I", max(0, len(chunk) - 4)) + chunk + struct.pack(">I", zlib.crc32(chunk) ^ (number == wrong))
        for number, chunk in enumerate(edited)
    )


def _edit_webp(data: bytes, random: Random) -> bytes:
    chunks: list[bytes] = []
    position = 12
    while position + 8 <= len(data):
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        chunks.append(data[position : position + 8 + length + length % 2])
        position += 8 + length + length % 2

    def change(chunk: bytes) -> bytes:
        content = chunk[8:]
        way = random.randrange(3)
        if way == 0:
            content = content[: random.randrange(len(content) + 1)]
        elif content:
            content = _flip(content, random)
        return chunk[:4] + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)

    body = b"WEBP" + b"".join(_edit_list(chunks, random, change))
    return b"RIFF" + struct.pack("<I", max(0, len(body) + random.choice((0,) * 8 + (-2, 2, -20, 100)))) + body
