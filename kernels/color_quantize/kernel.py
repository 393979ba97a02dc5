"""`color_quantize` as one Triton kernel: each pixel is read once and compared with the whole palette in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK, _SMALL_BLOCK = 1024, 128
"""Pixels per program: 8 instructions for a pixel and a colour, of which the loads of the colour are shared by 8 pixels
(counted in the machine code for compute capability 9.0). If there are few pixels, more programs take fewer each: with
1024, 16,384 pixels and 512 colours took 90 us on an H100, most of which had nothing to do."""
_FEW_PIXELS = 1 << 19
"""Half a million pixels give 512 large programs, four for each multiprocessor of an H100."""


@triton.jit  # type: ignore[untyped-decorator]
def _color_quantize(  # type: ignore[no-untyped-def]
    pixels,  # uint8[count, 3], contiguous
    coefficients,  # float32[colors, 4], contiguous
    result,  # int16[count] or int32[count], contiguous
    count,
    colors,
    BLOCK: tl.constexpr,  # noqa: N803 - a constant of the compiler
):
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # int64[BLOCK]
    mask = pixel < count
    red = tl.load(pixels + pixel * 3, mask=mask, other=0).to(tl.float32) - 128
    green = tl.load(pixels + pixel * 3 + 1, mask=mask, other=0).to(tl.float32) - 128
    blue = tl.load(pixels + pixel * 3 + 2, mask=mask, other=0).to(tl.float32) - 128
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    nearest = tl.zeros((BLOCK,), tl.int32)
    for color in range(colors):
        line = coefficients + color * 4
        # Integers below 2**24: fused or not, each sum is exact.
        distance = tl.load(line + 3) + red * tl.load(line) + green * tl.load(line + 1) + blue * tl.load(line + 2)
        nearest = tl.where(distance < least, color, nearest)  # "<" keeps the lowest of equally near colours
        least = tl.minimum(least, distance)
    tl.store(result + pixel, nearest.to(result.dtype.element_ty), mask=mask)


def color_quantize_triton(pixels: torch.Tensor, coefficients: torch.Tensor, result: torch.Tensor) -> None:
    """Writes what `color_quantize_reference` writes into `result`; does not synchronise the stream.

    Args:
        pixels: uint8[P, 3], contiguous.
        coefficients: float32[K, 4] of `Palette.coefficients`, contiguous, on the device of the pixels.
        result: int16[P] or int32[P], contiguous.
    """
    count = pixels.shape[0]
    if not count:
        return
    block = _BLOCK if count >= _FEW_PIXELS else _SMALL_BLOCK
    _color_quantize[(triton.cdiv(count, block),)](
        pixels,
        coefficients,
        result,
        count,
        coefficients.shape[0],
        BLOCK=block,
        enable_fp_fusion=True,  # still exact, and half as many instructions
    )
