"""The formulas of ITU-T H.273 between YCbCr and RGB, in float64: what conversions of colours are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

LUMA_WEIGHTS = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
"""(Kr, Kb) of table 4."""


def to_rgb(ycbcr: Any, matrix: str, full_range: bool) -> Any:
    """Returns float64 [..., 3] in 0..255, neither rounded nor clipped.

    Args:
        ycbcr: [..., 3] in 0..255.
        matrix: A key of `LUMA_WEIGHTS`.
        full_range: Whether luma ranges over 0 to 255 and not 16 to 235.
    """
    kr, kb = LUMA_WEIGHTS[matrix]
    kg = 1 - kr - kb
    luma, chroma = (1.0, 1.0) if full_range else (255 / 219, 255 / 224)
    red, blue = 2 * (1 - kr) * chroma, 2 * (1 - kb) * chroma
    weights = np.array([[luma, 0, red], [luma, -blue * kb / kg, -red * kr / kg], [luma, blue, 0]])
    return (ycbcr - np.array([0.0 if full_range else 16.0, 128.0, 128.0])) @ weights.T
