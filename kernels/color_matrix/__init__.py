"""Corrects the colours of decoded video, with a 3 x 3 matrix and an offset per clip, and sets dtype and layout.

NVIDIA DALI's video decoders always convert to RGB with BT.601; `ColorMatrix.between` corrects that for files in BT.709
and BT.2020. Values that the wrong formula clipped stay clipped: colours outside BT.601's gamut are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..backend import backend_for, on_device
from ..normalization import Dtype, divide_levels, values_on

__all__ = ["ColorMatrix", "Dtype", "IDENTITY", "Layout", "STANDARDS", "Standard", "convert_colors", "rgb_of_ycbcr"]  # noqa: RUF022

Standard = Literal["bt601", "bt709", "bt2020", "fcc", "smpte240m"]

STANDARDS: dict[Standard, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
"""Weights of red and blue in luma: ITU-R BT.601, BT.709 and BT.2020 (non-constant luminance), FCC 73.682, SMPTE
240M."""

FRACTION_BITS = 14
"""Coefficients are multiples of 2**-14: sums below 1024 levels are below 2**24 units, so float32 holds each exactly and
every backend computes the same bytes, in integers or floats. The error is at most 0.03 levels."""
_ONE = 1 << FRACTION_BITS
_MAX_SUM = 1023.0


@dataclass(frozen=True, slots=True)
class ColorMatrix:
    """A linear map of RGB in levels of 0..255: `rows` times (R, G, B, 1), in units of 2**-14.

    Raises:
        ValueError: The shape is not 3 x 4, or a sum could exceed what float32 holds exactly.
    """

    rows: tuple[tuple[int, int, int, int], ...]
    """For each output channel the weights of R, G and B and the offset."""

    def __post_init__(self) -> None:
        if len(self.rows) != 3 or any(len(row) != 4 for row in self.rows):
            raise ValueError(f"rows={self.rows} is not a 3 x 4 matrix: weights of R, G, B and an offset per channel.")
        largest = max(255 * sum(map(abs, row[:3])) + abs(row[3]) for row in self.rows) / _ONE
        if largest > _MAX_SUM:
            raise ValueError(f"rows={self.rows} reach {largest:.0f} levels; {_MAX_SUM:.0f} are exact in float32.")

    @classmethod
    def between(
        cls, made_with: Standard, wanted: Standard, *, made_full_range: bool = False, wanted_full_range: bool = False
    ) -> ColorMatrix:
        """Returns the map from RGB that was computed with the wrong formula to the RGB that the file declares.

        It is exact for colours that the wrong formula did not clip, except for the rounding to bytes in between.

        Args:
            made_with: Standard that the decoder assumed.
            wanted: Standard of the file.
            made_full_range: Whether the decoder took luma as 0..255, and not as 16..235.
            wanted_full_range: Whether luma of the file is 0..255, and not 16..235.
        """
        back = np.linalg.inv(_to_rgb(made_with, made_full_range))
        forth = _to_rgb(wanted, wanted_full_range)
        return cls.from_floats(forth @ back)

    @classmethod
    def from_floats(cls, matrix: NDArray[np.float64]) -> ColorMatrix:
        """Returns the nearest map in integers, which keeps gray exactly gray if `matrix` does.

        Args:
            matrix: float[3, 4], or float[4, 4] whose last row is ignored.
        """
        units = np.rint(matrix[:3] * _ONE).astype(np.int64)
        # The rounding error of the sum of the weights goes to the largest of them, or white would not stay white.
        error = np.rint(matrix[:3, :3].sum(axis=1) * _ONE).astype(np.int64) - units[:, :3].sum(axis=1)
        units[np.arange(3), np.abs(units[:, :3]).argmax(axis=1)] += error
        rows = [(int(red), int(green), int(blue), int(offset)) for red, green, blue, offset in units.tolist()]
        return cls(tuple(rows))

    @property
    def is_identity(self) -> bool:
        """Whether nothing changes."""
        return self == IDENTITY

    @property
    def weights(self) -> list[list[float]]:
        """The 3 x 3 weights as exact floats."""
        return [[weight / _ONE for weight in row[:3]] for row in self.rows]

    @property
    def offsets(self) -> list[float]:
        """The three offsets in levels, as exact floats."""
        return [row[3] / _ONE for row in self.rows]


IDENTITY = ColorMatrix(((_ONE, 0, 0, 0), (0, _ONE, 0, 0), (0, 0, _ONE, 0)))
"""Changes no colour."""


def _to_rgb(standard: Standard, full_range: bool) -> NDArray[np.float64]:
    """Returns float64[4, 4]: (Y, Cb, Cr, 1) in levels to (R, G, B, 1) in levels (ITU-R BT.601-7, 2.5; BT.709-6, 3)."""
    red, blue = STANDARDS[standard]
    green = 1 - red - blue
    luma, chroma, black = (1.0, 1.0, 0.0) if full_range else (255 / 219, 255 / 224, 16.0)
    matrix = np.array(
        [
            [luma, 0, chroma * 2 * (1 - red), 0],
            [luma, -chroma * 2 * (1 - blue) * blue / green, -chroma * 2 * (1 - red) * red / green, 0],
            [luma, chroma * 2 * (1 - blue), 0, 0],
            [0, 0, 0, 1],
        ]
    )
    matrix[:, 3] -= matrix @ np.array([black, 128, 128, 0])
    matrix[3, 3] = 1
    return matrix


def rgb_of_ycbcr(standard: Standard, full_range: bool) -> list[tuple[float, float, float, float]]:
    """Returns, for each channel of RGB, the weights of Y, Cb and Cr and the offset, all in levels of 0..255.

    Args:
        standard: Of the video.
        full_range: Whether luma is 0..255, and not 16..235.
    """
    return [(row[0], row[1], row[2], row[3]) for row in _to_rgb(standard, full_range)[:3].tolist()]


def convert_colors_reference(
    frames: torch.Tensor, coefficients: torch.Tensor, dtype: torch.dtype, channels_first: bool
) -> torch.Tensor:
    """Returns the frames with new colours, dtype and layout; a new tensor.

    This is the specification of the kernel, and what runs where Triton does not.

    A level is floor((weights . RGB + offset) / 2**14 + 1/2), clipped to 0..255. A float is level / 255, rounded to
    float32 and then to `dtype`, as if the bytes were converted.

    Args:
        frames: uint8[N, F, H, W, 3].
        coefficients: int32[N, 3, 4] in units of 2**-14, on the device of the frames.
        dtype: torch.uint8 or a floating type.
        channels_first: Whether the result is [N, F, 3, H, W] instead of [N, F, H, W, 3].
    """
    wide = frames.to(torch.int32)  # int32[N, F, H, W, 3]
    half = 1 << (FRACTION_BITS - 1)
    channels = []
    for channel in range(3):
        weights = coefficients[:, channel, :, None, None, None]  # int32[N, 4, 1, 1, 1]
        total = wide[..., 0] * weights[:, 0] + wide[..., 1] * weights[:, 1] + wide[..., 2] * weights[:, 2]
        channels.append(((total + weights[:, 3] + half) >> FRACTION_BITS).clamp_(0, 255).to(torch.uint8))
    levels = torch.stack(channels, dim=2 if channels_first else 4)
    return levels if dtype == torch.uint8 else divide_levels(levels, 255, dtype)


Layout = Literal["FCHW", "FHWC"]


def convert_colors(
    frames: torch.Tensor, matrices: Sequence[ColorMatrix], *, dtype: Dtype = "uint8", layout: Layout = "FCHW"
) -> torch.Tensor:
    """Returns frames with other colours, dtype and layout, in one pass over the memory; always a new tensor.

    Runs on the current stream of the frames' device and does not wait for it. On a GPU it is a Triton kernel, where
    Triton is installed. Every backend gives the same bits.

    Args:
        frames: uint8[N, F, H, W, 3], values 0..255, contiguous.
        matrices: One per N.
        dtype: Type of the result. Floats are level / 255.
        layout: "FCHW" returns [N, F, 3, H, W], "FHWC" returns [N, F, H, W, 3].

    Raises:
        ValueError: The frames have another dtype, rank or memory layout, the number of matrices is not N, or dtype or
            layout is unknown.
    """
    if frames.dtype != torch.uint8 or frames.ndim != 5 or frames.shape[4] != 3 or not frames.is_contiguous():
        raise ValueError(
            f"{frames.shape = }, {frames.dtype = }, {frames.stride() = }: frames must be a contiguous uint8[N, F, H, "
            "W, 3]. Call contiguous(), or stack clips of equal size."
        )
    if len(matrices) != frames.shape[0]:
        raise ValueError(f"{len(matrices) = } for {frames.shape = }: give one matrix per clip, the first axis.")
    if dtype not in get_args(Dtype) or layout not in get_args(Layout):
        raise ValueError(
            f"{dtype = }, {layout = }: dtype is one of {', '.join(get_args(Dtype))}, layout one of "
            f"{', '.join(get_args(Layout))}."
        )
    wanted: torch.dtype = getattr(torch, dtype)
    channels_first = layout == "FCHW"
    coefficients = torch.tensor([matrix.rows for matrix in matrices], dtype=torch.int32).view(-1, 3, 4)
    if backend_for("color_matrix", frames.device) == "reference":
        return convert_colors_reference(frames, coefficients.to(frames.device), wanted, channels_first)
    from .kernel import convert_colors_triton

    clips, count, height, width, _ = frames.shape
    shape = (clips, count, 3, height, width) if channels_first else (clips, count, height, width, 3)
    result = torch.empty(shape, dtype=wanted, device=frames.device)
    values = None if dtype == "uint8" else values_on(frames.device, dtype, None, 1)
    with torch.cuda.device(frames.device):
        placed = on_device(coefficients, frames.device)
        convert_colors_triton(frames, placed, values, result, channels_first, FRACTION_BITS)
    return result
