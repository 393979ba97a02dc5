"""How far the values of two backends may differ: one policy for all tests.

DALI on the CPU against PIL (DALI 2.4, Pillow 13; tests/decode/dali/images/test_operations.py, test_finish.py):

- no resampling, no Normalize: equal bit for bit, float16 and bfloat16 included.
- RGB, bilinear and bicubic with antialiasing, no crop after a resize: torch resamples what DALI decodes. Like PIL it
  rounds to bytes between its two passes and shortens the filter at the border, with weights of 16 bits in place of
  22. Of 30 million values in crops of photographs, 0.16 % differed by one level, and 2 (bilinear) and 24 (bicubic)
  values by two: 76 and 74 dB (200 crops to 224 pixels, measured once by hand). Normalize is then computed as with PIL.

Where DALI resamples or normalises itself (gray, RGBA, nearest, no antialiasing, crops after a resize):

- Normalize: DALI multiplies by 1/std where numpy divides; a few units in the last place.
- nearest: equal bit for bit, except where the centre of an output pixel is exactly on the line between two source
  pixels: there each library's rounding decides which of the two it takes.
- bilinear and bicubic: within one level of what PIL computes in floats ("F" images). On bytes PIL also rounds between
  its two passes and clips bicubic's overshoot there, which has no derived bound: 3 levels were seen, on saturated
  colours. At the border of the image DALI repeats the outermost pixel and PIL shortens the filter, so pixels within
  the filter's reach differ more.

Clips on the CPU, DALI against PyAV (FFmpeg 8; tests/decode/dali/video/test_video.py): DALI's frames equal swscale's
exact conversion with BT.601 bit for bit, and correcting them to another matrix adds at most one level inside BT.601's
gamut. PyAV's reader uses swscale's fast conversion, which at the video's own, even size uses each chroma sample for
two pixels without interpolation: sharp edges between colours differ by many levels. To resize, swscale scales luma and
chroma, and DALI scales RGB.

DALI on a GPU against the CPU: nvJPEG, nvJPEG2000 and nvTIFF decode JPEG, JPEG 2000 and TIFF there. On an H100 with
nvJPEG 13.3 (tests/gpu/test_pixels.py), the JPEG engine gave PIL's values but for one level in one of 10,000 of them,
and CUDA cores, which also decode what the engine does not (progressive, 4:1:1), differed by up to 3 levels: 62 dB.
nvTIFF and nvJPEG2000 should be exact where the format is lossless. CPU threads decode PNG, BMP and PNM, as on the CPU.
Gray images ("L") are computed from RGB on the GPU, which may round halves to even: 256 of the 2**24 colours may differ
by one level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits on the difference between two images, in levels of 0..255."""

    inside: float
    """Largest difference more than `border_px` away from the edge."""
    anywhere: float
    """Largest difference anywhere, the edge included."""
    border_px: int
    """Width of the edge, in pixels of the result."""
    psnr_db: float
    """Smallest peak signal-to-noise ratio over the whole image."""


EXACT = Tolerance(0, 0, 0, float("inf"))
"""No resampling, or nearest without ties."""
CPU_BILINEAR = Tolerance(inside=1, anywhere=32, border_px=4, psnr_db=48)
"""Bilinear on the CPU, against PIL on bytes; bicubic too, against PIL in floats."""
CPU_BICUBIC = Tolerance(inside=4, anywhere=32, border_px=4, psnr_db=48)
"""Bicubic on the CPU, against PIL on bytes: observed, not derived. The strict test is the one against PIL in floats."""
CPU_BY_TORCH = Tolerance(inside=2, anywhere=2, border_px=0, psnr_db=62)
"""RGB that torch resamples on the CPU, bilinear or bicubic, against PIL on bytes."""
GPU = Tolerance(inside=5, anywhere=5, border_px=0, psnr_db=56)
"""A GPU against the CPU, for JPEG: 3 levels and 62 dB were seen on an H100."""
CLIPS = Tolerance(inside=48, anywhere=64, border_px=2, psnr_db=34)
"""Clips of photographs, any backend that converts colours or resizes in another way than PyAV's fast conversion (DALI,
torchcodec where it resizes and on a GPU, PyNvVideoCodec): observed, not derived. The strict tests are those against the
exact conversion."""
TORCHCODEC_CPU = EXACT
"""Clips of torchcodec on the CPU against PyAV, at the size of the video: both use swscale's fast conversion. Where
torchcodec resizes, it scales RGB, and CLIPS applies."""
NORMALIZED_ULPS = 8
"""Units in the last place of float32 at 1.0 by which normalised values may differ, before rounding to a narrower
type."""


def psnr_db(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Returns the peak signal-to-noise ratio of two images in decibels; infinite if they are equal."""
    error = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


def explain_difference(a: NDArray[np.uint8], b: NDArray[np.uint8], tolerance: Tolerance) -> str | None:
    """Returns why two images differ by more than allowed; None if they do not.

    Args:
        a: uint8[H, W] or uint8[H, W, C].
        b: Of the same shape.
        tolerance: The limits.
    """
    if a.shape != b.shape:
        return f"{a.shape = } and {b.shape = }"
    difference = np.abs(a.astype(np.int16) - b.astype(np.int16))
    edge = tolerance.border_px
    inner = difference[edge : a.shape[0] - edge, edge : a.shape[1] - edge]
    inside, anywhere, ratio = int(inner.max(initial=0)), int(difference.max(initial=0)), psnr_db(a, b)
    if inside > tolerance.inside or anywhere > tolerance.anywhere or ratio < tolerance.psnr_db:
        return f"{inside} levels inside, {anywhere} at the edge, {ratio:.1f} dB; allowed: {tolerance}"
    return None
