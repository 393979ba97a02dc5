"""`convert_colors` as one Triton kernel: each byte is read once, each result written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from .matrix import FRACTION_BITS

if TYPE_CHECKING:
    import torch

_BLOCK = 1024
"""Pixels per program: 3 KiB read, 3 to 12 KiB written."""


@triton.jit  # type: ignore[untyped-decorator]
def _level(red, green, blue, weights, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    # weights: int32[4], the weights of red, green, blue and the offset of one channel
    total = red * tl.load(weights) + green * tl.load(weights + 1) + blue * tl.load(weights + 2) + tl.load(weights + 3)
    rounded = (total + (1 << (BITS - 1))) >> BITS  # an arithmetic shift: floor, also below zero
    return tl.minimum(tl.maximum(rounded, 0), 255)


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    result,
    offsets,
    mask,
    level,
    TO_BFLOAT16: tl.constexpr,  # noqa: N803 - constants of the compiler
    TO_FLOAT: tl.constexpr,  # noqa: N803
):
    if TO_FLOAT:
        value = tl.div_rn(level.to(tl.float32), 255.0)  # "/" is not rounded correctly on a GPU
        if TO_BFLOAT16:
            # To the nearest, ties to even, in whole numbers: Triton's interpreter cuts off instead.
            bits = value.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            tl.store(result + offsets, bits.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
        else:
            tl.store(result + offsets, value.to(result.dtype.element_ty), mask=mask)
    else:
        tl.store(result + offsets, level.to(tl.uint8), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _convert(  # type: ignore[no-untyped-def]
    frames,  # uint8[N * F, pixels, 3], contiguous
    coefficients,  # int32[N, 3, 4], contiguous
    result,  # dtype[N * F, 3, pixels] if CHANNELS_FIRST, else dtype[N * F, pixels, 3]; contiguous
    frames_per_clip,
    pixels,
    blocks_per_frame,
    CHANNELS_FIRST: tl.constexpr,  # noqa: N803
    TO_BFLOAT16: tl.constexpr,  # noqa: N803
    TO_FLOAT: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    frame = program // blocks_per_frame
    pixel = (program % blocks_per_frame).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # int64[BLOCK]
    mask = pixel < pixels
    first = frame.to(tl.int64) * pixels * 3  # of this frame, in both arrays: 64 bits, as a batch may exceed 2 GiB
    source = frames + first + 3 * pixel
    red = tl.load(source, mask=mask, other=0).to(tl.int32)
    green = tl.load(source + 1, mask=mask, other=0).to(tl.int32)
    blue = tl.load(source + 2, mask=mask, other=0).to(tl.int32)
    rows = coefficients + (frame // frames_per_clip).to(tl.int64) * 12
    for channel in tl.static_range(3):
        level = _level(red, green, blue, rows + 4 * channel, BITS)
        offsets = first + channel * pixels + pixel if CHANNELS_FIRST else first + 3 * pixel + channel
        _store(result, offsets, mask, level, TO_BFLOAT16, TO_FLOAT)


def convert_colors_triton(
    frames: torch.Tensor, coefficients: torch.Tensor, result: torch.Tensor, channels_first: bool
) -> None:
    """Writes what `reference.convert_colors_reference` returns into `result`; does not synchronise the stream.

    Args:
        frames: uint8[N, F, H, W, 3], contiguous.
        coefficients: int32[N, 3, 4], contiguous.
        result: uint8 or a floating type; contiguous, [N, F, 3, H, W] if channels_first, else [N, F, H, W, 3].
        channels_first: Layout of the result.
    """
    import torch

    clips, frames_per_clip, height, width, _ = frames.shape
    pixels = height * width
    blocks = triton.cdiv(pixels, _BLOCK)
    if not frames.numel():
        return
    _convert[(clips * frames_per_clip * blocks,)](
        frames, coefficients, result, frames_per_clip, pixels, blocks,
        CHANNELS_FIRST=channels_first, TO_BFLOAT16=result.dtype == torch.bfloat16, TO_FLOAT=result.dtype != torch.uint8,
        BITS=FRACTION_BITS, BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
