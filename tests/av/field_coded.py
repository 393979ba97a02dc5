"""H.264 whose two fields are coded as separate pictures, as broadcasts are and x264 cannot (ITU-T H.264 7.3)."""

from __future__ import annotations

import io
from fractions import Fraction

import av

START = b"\0\0\0\1"


class Bits:
    """Bits of a NAL unit, written from the first to the last."""

    def __init__(self) -> None:
        self.text = ""

    def fixed(self, size: int, value: int) -> Bits:
        """Appends a number of `size` bits."""
        self.text += f"{value:0{size}b}"
        return self

    def golomb(self, *values: int) -> Bits:
        """Appends Exp-Golomb numbers."""
        for value in values:
            self.text += "0" * ((value + 1).bit_length() - 1) + f"{value + 1:b}"
        return self

    def align(self) -> bytes:
        """Returns the bits as bytes, the last one filled with zeros."""
        self.text += "0" * (-len(self.text) % 8)
        return int(self.text, 2).to_bytes(len(self.text) // 8, "big")


def field_coded_video(container: str, frames: int) -> bytes:
    """Returns a video of 16 x 32 pixels with one packet per field; no frame refers to those of odd numbers."""
    stream = io.BytesIO()
    raw = b"".join(_field(number, bottom) for number in range(frames) for bottom in (0, 1))
    with av.open(io.BytesIO(raw), format="h264") as source, av.open(stream, "w", format=container) as target:
        copy = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.stream, packet.time_base = copy, Fraction(1, 50)
                packet.pts = packet.dts = number
                packet.duration = 1
                target.mux(packet)
    return stream.getvalue()


def luma(number: int, bottom: int) -> int:
    """Returns the luma of all pixels of a field."""
    return 20 + 20 * number + 5 * bottom


def _field(number: int, bottom: int) -> bytes:
    """Returns a field of one macroblock that stores its values (I_PCM), with the headers at the first."""
    is_first, is_reference = not number and not bottom, not number % 2
    head = Bits().golomb(0, 7, 0).fixed(4, (number + 1) // 2).fixed(1, 1).fixed(1, bottom)
    if is_first:
        head.golomb(0)
    head.fixed(8, 2 * number + bottom)
    if is_reference:
        head.fixed(2 if is_first else 1, 0)
    head.golomb(0, 1, 25)
    kind = (96 if is_reference else 0) + (5 if is_first else 1)
    unit = bytes([kind]) + head.align() + bytes([luma(number, bottom)] * 256 + [128] * 128) + b"\x80"
    sequence = Bits().fixed(24, 0x4D001E).golomb(0, 0, 0, 4, 1).fixed(1, 0).golomb(0, 0).fixed(6, 0b001001)
    picture = Bits().golomb(0, 0).fixed(2, 0).golomb(0, 0, 0).fixed(3, 0).golomb(0, 0, 0).fixed(4, 0b1001)
    headers = START + b"\x67" + sequence.align() + START + b"\x68" + picture.align()
    return START + b"\x09\xf0" + (headers if is_first else b"") + START + unit
