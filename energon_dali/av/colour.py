"""Converts decoded frames to RGB according to the colours that they declare.

If a frame does not declare its colours:

- Matrix: BT.709 if the frame is at least 1280 pixels wide or more than 576 high, BT.601 otherwise. This is what players
  do (mpv and libplacebo use this rule, others only the height). Plain swscale, and so PyAV and Energon, use BT.601 for
  every untagged file; for standard definition the result is the same.
- Range: limited (16 to 235), unless the pixel format implies the full range ("yuvj420p").

A frame that declares colours which swscale cannot convert, such as YCgCo or ICtCp, is a DecodeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

DecodeScale = Literal["exact", "fast", "fastest"]
"""How far scaling may change pixels, for the sake of speed."""
Matrix = Literal["rgb", "bt601", "bt709", "bt2020", "fcc", "smpte240m"]

_MATRICES: dict[int, Matrix] = {
    0: "rgb",
    1: "bt709",
    4: "fcc",
    5: "bt601",
    6: "bt601",
    7: "smpte240m",
    9: "bt2020",
    10: "bt2020",
}
"""AVColorSpace (ITU-T H.273, MatrixCoefficients) to matrix."""
_NOT_CONVERTED = {
    8: "YCgCo",
    11: "SMPTE ST 2085",
    12: "chromaticity-derived",
    13: "chromaticity-derived",
    14: "ICtCp",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}
"""AVColorSpace to the name of colours that swscale cannot convert."""
_SWS_MATRICES = {"bt709": 1, "fcc": 4, "bt601": 5, "smpte240m": 7, "bt2020": 9}
"""SWS_CS_* of swscale."""


@dataclass(frozen=True, slots=True)
class ColourFacts:
    """How the numbers of a frame represent colours."""

    matrix: Matrix
    """The matrix that converts YCbCr to RGB."""
    full_range: bool
    """Whether luma ranges over 0 to 255 (at 8 bits) instead of 16 to 235."""


def find_colours(matrix: int, colour_range: int, pixel_format: str, width: int, height: int) -> ColourFacts:
    """Returns the colours of a frame by its tags, or by the rule of this module if there are none.

    Args:
        matrix: AVColorSpace; 2 for unspecified.
        colour_range: AVColorRange; 0 for unspecified, 1 limited, 2 full.
        pixel_format: FFmpeg's name.
        width: In pixels, as stored.
        height: In pixels, as stored.

    Raises:
        DecodeError: The declared colours cannot be converted to RGB.
    """
    if pixel_format.startswith(("rgb", "bgr", "gbr", "argb", "abgr", "pal8", "0rgb", "0bgr")):
        return ColourFacts("rgb", True)
    if matrix in _NOT_CONVERTED:
        raise DecodeError(
            f"Its colours are declared as {_NOT_CONVERTED[matrix]} (matrix {matrix}), which cannot be converted to "
            "RGB. Encode it again, with BT.709 for example",
            route="pyav",
        )
    guessed: Matrix = "bt709" if width >= 1280 or height > 576 else "bt601"
    found = _MATRICES.get(matrix, guessed)
    full = pixel_format.startswith("yuvj") or colour_range == 2
    return ColourFacts(guessed if found == "rgb" else found, full)


def colours_of_frame(frame: VideoFrame) -> ColourFacts:
    """Returns the colours of a decoded frame.

    The tags are the frame's own, which the decoder sets: always BT.601 for VP8 and Motion JPEG, and those of the
    bitstream for most other codecs. The container's may say otherwise.

    Raises:
        DecodeError: The declared colours cannot be converted to RGB.
    """
    return find_colours(int(frame.colorspace), int(frame.color_range), frame.format.name, frame.width, frame.height)


class FrameConverter:
    """Writes decoded frames as RGB of one size into arrays. swscale applies size, matrix and range in one pass.

    Bilinear, like Energon and PyAV. Exact rounding needs swscale flags that take four times as long; without them a
    channel is off by up to 2.

    Args:
        width: Width of the result in pixels.
        height: Height of the result in pixels.
        decode_scale: Other than "exact": frames that become smaller go through RGBA, for which swscale has vector
            instructions on x86. That takes two fifths of the time, and channels differ by up to 6 levels.
    """

    def __init__(self, width: int, height: int, *, decode_scale: DecodeScale = "exact") -> None:
        from av.video.reformatter import VideoReformatter

        self.width = width
        self.height = height
        self.decode_scale: DecodeScale = decode_scale
        self._reformatter = VideoReformatter()

    def write(self, frame: VideoFrame, target: npt.NDArray[np.uint8]) -> None:
        """Writes one frame.

        Args:
            frame: Decoded, of any size and pixel format.
            target: uint8 [height, width, 3], with any strides; every element is written.

        Raises:
            DecodeError: The declared colours cannot be converted to RGB.
        """
        facts = colours_of_frame(frame)
        given: dict[str, Any] = {}
        if facts.matrix != "rgb":
            given = {"src_colorspace": _SWS_MATRICES[facts.matrix], "src_color_range": 2 if facts.full_range else 1}
        shrinks = frame.width >= self.width and frame.height >= self.height
        shrinks = shrinks and (frame.width, frame.height) != (self.width, self.height)
        channels = 4 if shrinks and self.decode_scale != "exact" else 3
        converted = self._reformatter.reformat(
            frame,
            self.width,
            self.height,
            "rgba" if channels == 4 else "rgb24",
            interpolation="BILINEAR",
            threads=1,
            **given,
        )
        plane = converted.planes[0]
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # type: ignore[call-overload]
        pixels = rows[: self.height, : self.width * channels].reshape(self.height, self.width, channels)
        target[...] = pixels[..., :3]
