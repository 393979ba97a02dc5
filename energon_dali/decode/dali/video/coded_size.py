"""Finds out whether a decoder shows the frames of a video as it codes them, or cuts them.

DALI 2.4 takes a hardware decoder from its cache if the size that the decoder shows equals the size in which the next
file is coded. Where the two differ (1080 lines of H.264 are coded as 1088) it may take the decoder of another size,
and then reads chroma rows at the wrong place, without an error. Or it never finds the decoder again, makes one per
file, and keeps up to 100 of them.

Sources: ITU-T H.264 7.3.2.1.1, ITU-T H.265 7.3.2.2.1 and 7.3.3; ISO/IEC 14496-15 5.3.3.1 and 8.3.3.1 for the boxes.
"""

from __future__ import annotations

from collections.abc import Iterator

from energon_dali.decode.formats import IrregularHeaderError

CODED_UNITS: dict[str, int] = {"h264": 16, "hevc": 8, "mpeg4": 16, "vp9": 8, "av1": 8}
"""By FFmpeg's name of the codec, the pixels of which both sides of a coded frame are multiples at least."""

_H264_WITH_CHROMA = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})
"""The profiles whose parameter sets state their chroma format."""
_HEVC_SPS = 33


def has_whole_units(codec: str, width: int, height: int) -> bool:
    """Returns whether both sides of a video are multiples of what its codec codes at a time.

    Args:
        codec: FFmpeg's name.
        width: Of the frames as shown, in pixels.
        height: Likewise.
    """
    unit = CODED_UNITS[codec]
    return width % unit == 0 and height % unit == 0


def shows_whole_frames(codec: str, extradata: bytes, width: int, height: int) -> bool:
    """Returns whether all parameter sets of a file code frames of one size, of which nothing is cut.

    Args:
        codec: FFmpeg's name. Other codecs than H.264 and HEVC have no parameter sets.
        extradata: The decoder configuration of an MP4 or Matroska file; for others, False is returned.
        width: Of the frames as shown, in pixels.
        height: Likewise.

    Raises:
        IrregularHeaderError: A parameter set is cut off.
    """
    if codec not in ("h264", "hevc"):
        return has_whole_units(codec, width, height)
    sets = [*(_h264_sets(extradata) if codec == "h264" else _hevc_sets(extradata))]
    read = _read_h264 if codec == "h264" else _read_hevc
    return bool(sets) and all(read(_Fields(each)) == (width, height, False) for each in sets)


def codes_frames(codec: str, extradata: bytes) -> bool:
    """Returns whether no parameter set of a file allows interlaced frames, coded as fields; only H.264 is examined.

    Args:
        codec: FFmpeg's name.
        extradata: As for `shows_whole_frames`.

    Raises:
        IrregularHeaderError: A parameter set is cut off.
    """
    if codec != "h264":
        return True
    sets = [*_h264_sets(extradata)]
    return bool(sets) and all(_read_h264(_Fields(each)) is not None for each in sets)


def _h264_sets(extradata: bytes) -> Iterator[bytes]:
    if len(extradata) < 7 or extradata[0] != 1:
        return
    at = 6
    for _ in range(extradata[5] & 31):
        size = int.from_bytes(extradata[at : at + 2], "big")
        yield extradata[at + 3 : at + 2 + size]  # without the byte of the unit's header
        at += 2 + size


def _hevc_sets(extradata: bytes) -> Iterator[bytes]:
    if len(extradata) < 23 or extradata[0] != 1:
        return
    at = 23
    for _ in range(extradata[22]):
        kind, count = extradata[at] & 63, int.from_bytes(extradata[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            size = int.from_bytes(extradata[at : at + 2], "big")
            if kind == _HEVC_SPS:
                yield extradata[at + 4 : at + 2 + size]  # without the two bytes of the unit's header
            at += 2 + size


class _Fields:
    """Reads the fields of a parameter set: bits, and exp-Golomb codes (ITU-T H.264 9.1)."""

    def __init__(self, unit: bytes) -> None:
        payload = unit.replace(b"\0\0\3", b"\0\0")  # without the bytes that keep start codes out
        self._value = int.from_bytes(payload, "big")
        self._left = 8 * len(payload)

    def take(self, count: int) -> int:
        """Returns an unsigned integer of the given number of bits."""
        if count > self._left:
            raise IrregularHeaderError
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1)

    def take_code(self) -> int:
        """Returns an unsigned exp-Golomb code."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def take_signed_code(self) -> int:
        """Returns a signed exp-Golomb code."""
        code = self.take_code()
        return (code + 1) // 2 if code & 1 else -(code // 2)


def _read_h264(fields: _Fields) -> tuple[int, int, bool] | None:
    """Returns (width, height) of coded frames and whether they are cut; None where they may be coded as fields."""
    profile = fields.take(8)
    fields.take(16)
    fields.take_code()
    if profile in _H264_WITH_CHROMA:
        chroma = fields.take_code()
        if chroma == 3:
            fields.take(1)
        fields.take_code()
        fields.take_code()
        fields.take(1)
        if fields.take(1):
            for number in range(8 if chroma != 3 else 12):
                if fields.take(1):
                    _skip_h264_scaling(fields, 16 if number < 6 else 64)
    fields.take_code()
    order = fields.take_code()
    if order == 0:
        fields.take_code()
    elif order == 1:
        fields.take(1)
        fields.take_code()
        fields.take_code()
        for _ in range(fields.take_code()):
            fields.take_code()
    fields.take_code()
    fields.take(1)
    width, height = 16 * (fields.take_code() + 1), 16 * (fields.take_code() + 1)
    if not fields.take(1):  # fields, which a decoder would also have to interleave
        return None
    fields.take(1)
    return width, height, bool(fields.take(1))


def _skip_h264_scaling(fields: _Fields, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + fields.take_signed_code()) % 256
        last = following or last


def _read_hevc(fields: _Fields) -> tuple[int, int, bool]:
    """Returns (width, height) of coded frames and whether they are cut, by the conformance window."""
    fields.take(4)
    layers = fields.take(3)
    fields.take(1 + 88 + 8)
    present = [(fields.take(1), fields.take(1)) for _ in range(layers)]
    if layers:
        fields.take(2 * (8 - layers))
    for profile, level in present:
        fields.take(88 * profile + 8 * level)
    fields.take_code()
    if fields.take_code() == 3:
        fields.take(1)
    width, height = fields.take_code(), fields.take_code()
    return width, height, bool(fields.take(1))
