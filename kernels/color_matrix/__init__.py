"""Corrects the colours of decoded video, with a 3 x 3 matrix and an offset per clip, and sets dtype and layout.

NVIDIA DALI's video decoders always convert to RGB with BT.601; `ColorMatrix.between` corrects that for files in BT.709
and BT.2020. Values that the wrong formula clipped stay clipped: colours outside BT.601's gamut are lost.
"""

from __future__ import annotations

from ..normalization import Dtype
from .matrix import IDENTITY, STANDARDS, ColorMatrix, Standard
from .operation import Layout, convert_colors

__all__ = ["ColorMatrix", "Dtype", "IDENTITY", "Layout", "STANDARDS", "Standard", "convert_colors"]  # noqa: RUF022
