"""Gives decoded video the colours that its file asks for: a 3 x 3 matrix and an offset per clip, with dtype and layout.

Video decoders of NVIDIA DALI convert to RGB with BT.601, whatever a file says. A file in BT.709 or BT.2020 then has wrong
colours by up to 60 of 255 levels; `ColorMatrix.between` is what sets them right.
"""

from __future__ import annotations

from energon_dali.kernels.color_matrix.matrix import IDENTITY, STANDARDS, ColorMatrix, Standard
from energon_dali.kernels.color_matrix.operation import Dtype, Layout, convert_colors

__all__ = ["IDENTITY", "STANDARDS", "ColorMatrix", "Dtype", "Layout", "Standard", "convert_colors"]
