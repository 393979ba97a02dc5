"""The colours with which pixels are compared, in integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNITS_PER_LEVEL = 8
"""Palette colours are multiples of an eighth of a level. Counted from 128, a channel of a pixel or of a colour is at
most 1,024 units, and |colour|**2 - 2 * colour . pixel at most 3 * 1024**2 + 6 * 1024**2 < 2**24, like each of its
partial sums. So float32 holds it exactly, and every backend finds the same colour."""
_MIDDLE = 128


@dataclass(frozen=True, slots=True)
class Palette:
    """K colours, each a multiple of an eighth of a level per channel.

    Raises:
        ValueError: There are no colours or more than 32768, or one does not have three channels within 0..255.
    """

    units: tuple[tuple[int, int, int], ...]
    """Red, green and blue of each colour, in eighths of a level."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.units) <= 32768:
            raise ValueError(f"A palette of {len(self.units)} colours: give 1 to 32768, which an int16 can index.")
        most = 255 * UNITS_PER_LEVEL
        for index, color in enumerate(self.units):
            if len(color) != 3 or not all(0 <= unit <= most for unit in color):
                raise ValueError(f"Colour {index} is {color}: give three channels of 0 to {most} eighths of a level.")

    @classmethod
    def from_levels(cls, levels: Sequence[Sequence[float]] | NDArray[np.floating] | NDArray[np.integer]) -> Palette:
        """Returns the palette of colours in levels, rounded to eighths of a level.

        Because of the rounding, the colour that is found may be up to 0.22 levels (the square root of 3, over 8)
        farther from a pixel than the nearest one.

        Args:
            levels: float[K, 3] in 0..255. Clusters c in -1..1, such as ImageGPT's, are (c + 1) * 127.5.

        Raises:
            ValueError: The shape is another, a number is not finite, or a colour is outside 0..255.
        """
        colors = np.asarray(levels, np.float64)
        if colors.ndim != 2 or colors.shape[1] != 3 or not np.isfinite(colors).all():
            raise ValueError(f"levels of shape {colors.shape}: a palette is [K, 3], finite numbers in 0..255.")
        units = np.rint(colors * UNITS_PER_LEVEL).astype(np.int64)
        return cls(tuple((int(red), int(green), int(blue)) for red, green, blue in units.tolist()))

    def coefficients(self) -> NDArray[np.float32]:
        """Returns float32[K, 4] with integer values: a distance is the first three times the pixel, plus the fourth.

        Pixels are in levels above 128. The distance is squared, in units, without the square of the pixel, which is the
        same for all colours.
        """
        centered = np.array(self.units, np.int64) - _MIDDLE * UNITS_PER_LEVEL  # int64[K, 3]
        squares = (centered**2).sum(axis=1, keepdims=True)
        return np.concatenate([-2 * UNITS_PER_LEVEL * centered, squares], axis=1).astype(np.float32)
