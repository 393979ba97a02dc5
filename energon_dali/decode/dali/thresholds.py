"""The sizes for which DALI is faster than PIL and PyAV: the one table that "auto" uses.

`python -m benchmarks.tuning --only images clips` measures both sides and prints the entries of this table
(docs/dali-crossover.md shows the figures). An option that names a device ("cpu", "gpu", 0) ignores the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from energon_dali.decode.spec import BackendName
from energon_dali.decode.video_backends.base import Kind


@dataclass(frozen=True, slots=True)
class Threshold:
    """Sizes for which DALI is taken."""

    least_pixels: int | None = 0
    """Smallest size, or None for never: width times height of an image; for clips also times the frames to decode."""
    most_pixels: int | None = None
    """Largest size, or None for no limit."""
    measured: bool = True
    """Whether this was measured, or guessed."""

    def includes(self, pixels: int) -> bool:
        """Returns whether DALI is taken for this size."""
        if self.least_pixels is None:
            return False
        return self.least_pixels <= pixels and (self.most_pixels is None or pixels <= self.most_pixels)


_GUESSED = Threshold(measured=False)
_NEVER = Threshold(None)
_FROM_8_FRAMES = Threshold(8 * 640 * 360, measured=False)
"""Setting up NVDEC for a file is assumed to cost as much as decoding a few frames with PyAV."""

IMAGES: dict[Kind, dict[str, Threshold]] = {
    "cpu": {
        "jpeg": Threshold(),
        "png": Threshold(),
        "tiff": Threshold(0, 110000),
        "jpeg2000": _GUESSED,
        "bmp": Threshold(0, 33000),
        "pnm": Threshold(0, 4100),
    },
    "gpu": dict.fromkeys(("jpeg", "png", "tiff", "jpeg2000", "bmp", "pnm"), _GUESSED),
}
"""Images at their own size as uint8, by format. Where they are also resampled or normalised, DALI is always taken."""
CLIPS: dict[Kind, dict[str, Threshold]] = {
    "cpu": dict.fromkeys(("vp8", "vp9", "mjpeg"), _NEVER),
    "gpu": dict.fromkeys(("h264", "hevc", "vp9", "mpeg4", "av1"), _FROM_8_FRAMES),
}
"""Clips, by codec."""


PREFERRED_BACKENDS: dict[Kind, tuple[BackendName, ...]] = {"cpu": ("dali",), "gpu": ("dali",)}
"""Which backends "auto" takes for clips beyond their threshold: the first that is installed and decodes the video
correctly, and PyAV if none does. Only what was measured to be faster on a host belongs here: nothing but DALI was
planned for a GPU so far, and on the CPU PyAV takes less time than torchcodec (docs/video-backends.md)."""


def prefers_dali_image(format: str, width: int, height: int, kind: Kind) -> bool:
    """Returns whether "auto" takes DALI for an eligible image.

    Args:
        format: As in the header ("jpeg").
        width: In pixels.
        height: In pixels.
        kind: Where DALI would decode it.
    """
    return IMAGES[kind].get(format, _GUESSED).includes(width * height)


def prefers_dali_clips(codec: str, width: int, height: int, frames_to_decode: int, kind: Kind) -> bool:
    """Returns whether "auto" takes DALI for the clips of an eligible video.

    Args:
        codec: FFmpeg's name ("h264").
        width: Of the frames as stored, in pixels.
        height: Likewise.
        frames_to_decode: Frames that must be decoded to get the wanted ones.
        kind: Where DALI would decode it.
    """
    return CLIPS[kind].get(codec, _NEVER).includes(frames_to_decode * width * height)
