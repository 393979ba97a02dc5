"""Gives decoded video the colours of its file: a 3 x 3 matrix and an offset per clip, with dtype and layout.

Video decoders of NVIDIA DALI convert to RGB with BT.601, whatever a file says; `ColorMatrix.between` sets it right for
files in BT.709 and BT.2020. What the wrong formula clipped stays clipped: colours outside BT.601's gamut are lost.
"""

from __future__ import annotations

from ..normalization import Dtype
from .matrix import IDENTITY, STANDARDS, ColorMatrix, Standard
from .operation import Layout, convert_colors

__all__ = ["ColorMatrix", "Dtype", "IDENTITY", "Layout", "STANDARDS", "Standard", "convert_colors"]  # noqa: RUF022
