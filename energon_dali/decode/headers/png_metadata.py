"""The chunks of a PNG besides its pixels: which of them PIL refuses, and the orientation that they state."""

from __future__ import annotations

import zlib

from energon_dali.decode.headers.exif import exif_orientation, xmp_orientation

_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_LENGTHS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
_FREE = frozenset({b"bKGD", b"sBIT", b"hIST", b"sPLT"})
_LARGEST_TEXT_BYTES = 1 << 20
"""PIL refuses a chunk that unpacks to more."""
_EXIF, _RAW_PROFILE, _XMP = b"exif", b"Raw profile type exif", b"XML:com.adobe.xmp"


class PngMetadata:
    """Reads chunks one by one, in their order."""

    def __init__(self) -> None:
        self.plain = True
        """Whether PIL and DALI take all chunks so far for certain."""
        self._exif: bytes | None = None
        self._exif_blocks = 0
        self._texts: dict[bytes, bytes] = {}

    def add(self, kind: bytes, content: bytes) -> None:
        """Reads a chunk that holds neither size, palette, transparency nor pixels."""
        if kind == b"eXIf":
            self._exif = content
            self._exif_blocks += 1
        elif kind in _TEXTS:
            self._add_text(kind, content)
        elif kind == b"iCCP":
            packed = content.partition(b"\0")[2]
            self.plain &= packed[:1] == b"\0" and _unpack(packed[1:]) is not None
        elif kind in _LENGTHS:
            self.plain &= len(content) == _LENGTHS[kind]
        else:
            self.plain &= kind in _FREE

    def orientation(self) -> tuple[int, bool]:
        """Returns the orientation as PIL finds it, 1 to 8, and whether DALI finds the same.

        EXIF comes first: of its own chunk, or of a text with its name. Then follow what ImageMagick writes, and XMP.
        """
        stated, for_dali, regular = 0, 1, self._exif_blocks < 2
        if self._exif is not None:
            stated, alike = exif_orientation(self._exif, 0, len(self._exif))
            for_dali = stated or 1
            regular &= alike
        elif _RAW_PROFILE in self._texts:
            content = _from_hexadecimal(self._texts[_RAW_PROFILE])
            stated, _ = exif_orientation(content, 0, len(content))
        if not stated and _XMP in self._texts:
            stated = xmp_orientation(self._texts[_XMP])
        # Several EXIF blocks are for DALI what several orientations in one are.
        return stated or 1, regular and (stated or 1) == for_dali

    def _add_text(self, kind: bytes, content: bytes) -> None:
        name, _, text = content.partition(b"\0")
        if kind == b"tEXt" and name == _EXIF:
            self._exif = text
            self.plain = False
        packed = kind == b"zTXt"
        if kind == b"iTXt":
            flags, text = text[:2], text[2:].partition(b"\0")[2].partition(b"\0")[2]  # behind two names
            packed = flags[:1] not in (b"", b"\0")
            self.plain &= not packed or flags[1:] == b"\0"
        elif packed:
            self.plain &= text[:1] in (b"", b"\0")
            text = text[1:]
        unpacked = _unpack(text) if packed else text
        self.plain &= unpacked is not None and len(unpacked) <= _LARGEST_TEXT_BYTES
        if name in (_RAW_PROFILE, _XMP) and unpacked is not None:
            self._texts[name] = unpacked


def _unpack(packed: bytes) -> bytes | None:
    """Returns what PIL makes of a packed text; None if PIL refuses it for its size."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(packed, _LARGEST_TEXT_BYTES)
    except zlib.error:
        return b""
    return None if unpacker.unconsumed_tail else unpacked


def _from_hexadecimal(text: bytes) -> bytes:
    """Returns the content of a profile as ImageMagick writes it: three lines of header, then hexadecimal digits."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""
