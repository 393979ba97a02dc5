"""The operation that callers use: checks its arguments, and runs the kernel on a GPU and the reference elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from ..backend import backend_for
from ..normalization import Dtype, values_on
from .matrix import ColorMatrix
from .reference import convert_colors_reference

if TYPE_CHECKING:
    import torch

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
    import torch

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
    from ..pad_stack.kernel import on_device
    from .kernel import convert_colors_triton

    clips, count, height, width, _ = frames.shape
    shape = (clips, count, 3, height, width) if channels_first else (clips, count, height, width, 3)
    result = torch.empty(shape, dtype=wanted, device=frames.device)
    values = None if dtype == "uint8" else values_on(frames.device, dtype, None, 1)
    with torch.cuda.device(frames.device):
        convert_colors_triton(frames, on_device(coefficients, frames.device), values, result, channels_first)
    return result
