"""`pad_stack` as one Triton kernel and one launch: each byte is read once, each result written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

_BLOCK = 1024
"""Pixels of the batch per program."""


@triton.jit
def normalized_level(level, shift, divisor, inside):  # type: ignore[no-untyped-def]
    """Returns (level - shift) / divisor in float32 where `inside`, else zero; no step of it can be fused."""
    value = tl.div_rn(level.to(tl.float32) - shift, divisor)  # "/" is not rounded correctly on a GPU
    return tl.where(inside, value, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def store_float(result, offsets, mask, value, TO_BFLOAT16: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Stores float32 values in the floating type of `result`, rounded to the nearest, ties to even."""
    if TO_BFLOAT16:
        # In whole numbers, as Triton's interpreter cuts off instead.
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(result + offsets, bits.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
    else:
        tl.store(result + offsets, value.to(result.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _pad_stack(  # type: ignore[no-untyped-def]
    table,  # int64[N, 6]: address of the first pixel, height, width, strides of y, x and channel, in bytes
    coefficients,  # float32[2, CHANNELS], contiguous; not read if TO_BYTES
    result,  # dtype[N, height, width, CHANNELS] in memory of CHANNELS planes if CHANNELS_FIRST; contiguous
    pixels,  # height * width < 2**31
    width,
    blocks_per_image,
    CHANNELS: tl.constexpr,  # noqa: N803 - constants of the compiler
    CHANNELS_FIRST: tl.constexpr,  # noqa: N803
    TO_BFLOAT16: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    image = (program // blocks_per_image).to(tl.int64)  # 64 bits, as a batch may exceed 2 GiB
    pixel = (program % blocks_per_image) * BLOCK + tl.arange(0, BLOCK)  # int32[BLOCK]: 64-bit division is slow
    mask = pixel < pixels
    y = pixel // width
    x = pixel - y * width
    row = table + image * 6
    source = tl.load(row).to(tl.pointer_type(tl.uint8))
    inside = mask & (y < tl.load(row + 1)) & (x < tl.load(row + 2))
    offsets = y * tl.load(row + 3) + x * tl.load(row + 4)  # int64[BLOCK]
    channel_stride = tl.load(row + 5)
    for channel in tl.static_range(CHANNELS):
        level = tl.load(source + offsets + channel * channel_stride, mask=inside, other=0)
        if CHANNELS_FIRST:
            target = (image * CHANNELS + channel) * pixels + pixel
        else:
            target = (image * pixels + pixel) * CHANNELS + channel
        if TO_BYTES:
            tl.store(result + target, level, mask=mask)
        else:
            shift = tl.load(coefficients + channel)
            value = normalized_level(level, shift, tl.load(coefficients + CHANNELS + channel), inside)
            store_float(result, target, mask, value, TO_BFLOAT16)


def address_rows(images: Sequence[torch.Tensor], flips: Sequence[bool]) -> list[list[int]]:
    """Returns per image: address of the first pixel, height, width, strides of y, x and channel, in bytes.

    A mirrored image starts at its last column and goes back.

    Args:
        images: uint8[h, w, C], of any strides.
        flips: One per image.
    """
    rows = []
    for image, flip in zip(images, flips, strict=True):
        height, width, _ = image.shape
        along_y, along_x, along_channels = image.stride()
        start = image.data_ptr() + ((width - 1) * along_x if flip and image.numel() else 0)
        rows.append([start, height, width, along_y, -along_x if flip else along_x, along_channels])
    return rows


def pad_stack_triton(
    images: Sequence[torch.Tensor],
    flips: Sequence[bool],
    coefficients: torch.Tensor | None,
    result: torch.Tensor,
) -> None:
    """Writes what `reference.pad_stack_reference` writes into `result`; does not synchronise the stream.

    Args:
        images: uint8[h, w, C] of any strides, each at most [H, W, C], on the device of the result.
        flips: One per image.
        coefficients: float32[2, C] on the CPU, or None for bytes.
        result: dtype[N, H, W, C], contiguous, or the view of a contiguous dtype[N, C, H, W]; H * W < 2**31.
    """
    import torch

    count, height, width, channels = result.shape
    if not result.numel():
        return
    table = torch.tensor(address_rows(images, flips), dtype=torch.int64)
    if coefficients is None:
        coefficients = torch.zeros((2, channels), dtype=torch.float32)
    blocks = triton.cdiv(height * width, _BLOCK)
    _pad_stack[(count * blocks,)](
        on_device(table, result.device), on_device(coefficients, result.device), result, height * width, width, blocks,
        CHANNELS=channels, CHANNELS_FIRST=not result.is_contiguous(), TO_BFLOAT16=result.dtype == torch.bfloat16,
        TO_BYTES=result.dtype == torch.uint8, BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a small tensor of the CPU on a device; from pinned memory it goes over without a wait for the stream.

    Args:
        tensor: On the CPU.
        device: Where it is wanted.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
