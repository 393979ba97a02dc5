"""`pad_stack` as one Triton kernel and one launch: each byte is read once, each result written once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ..backend import on_device
from ..normalization import as_integers

_ROWS, _COLUMNS = 16, 64
"""Rows of the batch per program, and of each row pixels, or values where a pixel's channels are next to each other. In
two dimensions no thread divides by the row's length, and few predicates are alive: 19 instructions for a bfloat16 in
planes instead of 24 (counted in the machine code for compute capability 9.0)."""
WIDE_BYTES = 2**31
"""From this size, offsets need 64 bits. Pixels outside an image are masked, whatever their offsets."""


# Without this Triton would recompile if one of these is 1 or divisible by 16: for nearly every batch, for no gain.
@triton.jit(do_not_specialize=["height", "tiles_along_y", "tiles_along_x"])  # type: ignore[untyped-decorator]
def _pad_stack(  # type: ignore[no-untyped-def]
    table,  # int64[N, 6]: address of the first pixel, height, width, strides of y, x and channel, in bytes
    values,  # integers of the result's size[CHANNELS, 256]: the value of each level; not read if TO_BYTES
    result,  # [N, height, width, CHANNELS] in memory of CHANNELS planes if CHANNELS_FIRST; contiguous
    height,
    width,
    tiles_along_y,
    tiles_along_x,
    CHANNELS: tl.constexpr,  # noqa: N803 - constants of the compiler
    CHANNELS_FIRST: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803 - whether offsets inside an image need 64 bits, which are slow
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    strip = program // tiles_along_x
    image = strip // tiles_along_y
    y = (strip - image * tiles_along_y) * ROWS + tl.arange(0, ROWS)  # int32[ROWS]
    column = (program - strip * tiles_along_x) * COLUMNS + tl.arange(0, COLUMNS)  # int32[COLUMNS]
    image_wide = image.to(tl.int64)  # a batch may exceed 2 GiB
    row = table + image_wide * 6
    source = tl.load(row).to(tl.pointer_type(tl.uint8))
    along_y, along_x, along_channels = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)
    if CHANNELS_FIRST:
        x, length = column, width
    else:
        # Neighbouring threads write neighbouring values. Writing one channel after the other, three bytes apart, took
        # ten times as long on an H100.
        x, length = column // CHANNELS, width * CHANNELS
    inside = (y < tl.load(row + 1).to(tl.int32))[:, None] & (x < tl.load(row + 2).to(tl.int32))[None, :]
    mask = (y < height)[:, None] & (column < length)[None, :]
    if WIDE:
        offsets = (y * along_y)[:, None] + (x * along_x)[None, :]  # int64[ROWS, COLUMNS]
        targets = (y.to(tl.int64) * length)[:, None] + column[None, :]
    else:
        offsets = (y * along_y.to(tl.int32))[:, None] + (x * along_x.to(tl.int32))[None, :]  # int32[ROWS, COLUMNS]
        targets = (y * length)[:, None] + column[None, :]
    if CHANNELS_FIRST:
        for channel in tl.static_range(CHANNELS):
            value = tl.load((source + channel * along_channels) + offsets, mask=inside, other=0)
            if not TO_BYTES:
                value = tl.load((values + channel * 256) + value.to(tl.int32), mask=inside, other=0)
            place = result + (image_wide * CHANNELS + channel) * height * width
            tl.store(place + targets, value, mask=mask)
    else:
        channels = (column - x * CHANNELS)[None, :]  # int32[1, COLUMNS]
        value = tl.load(source + offsets + channels * along_channels, mask=inside, other=0)
        if not TO_BYTES:
            value = tl.load(values + (channels * 256 + value.to(tl.int32)), mask=inside, other=0)
        tl.store(result + image_wide * height * length + targets, value, mask=mask)


def address_rows(images: Sequence[torch.Tensor], flips: Sequence[bool]) -> list[list[int]]:
    """Returns for each image the address of its first pixel, height, width, and strides of y, x and channel in bytes.

    A mirrored image starts at its last column and has a negative stride.

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
    images: Sequence[torch.Tensor], flips: Sequence[bool], values: torch.Tensor | None, result: torch.Tensor
) -> None:
    """Writes what `pad_stack_reference` writes into `result`; does not synchronise the stream.

    Args:
        images: uint8[h, w, C] of any strides, each at most [H, W, C], on the device of the result.
        flips: One per image.
        values: dtype[C, 256] of `values_of_levels`, contiguous, on the device of the result; None for bytes.
        result: dtype[N, H, W, C], contiguous, or the view of a contiguous dtype[N, C, H, W]; H * W < 2**31.
    """
    count, height, width, channels = result.shape
    if not result.numel():
        return
    rows = address_rows(images, flips)
    table = on_device(torch.tensor(rows, dtype=torch.int64), result.device)
    channels_first = not result.is_contiguous()
    tiles = triton.cdiv(height, _ROWS), triton.cdiv(width if channels_first else width * channels, _COLUMNS)
    _pad_stack[(count * tiles[0] * tiles[1],)](
        table,
        table if values is None else as_integers(values),
        as_integers(result),
        height,
        width,
        *tiles,
        CHANNELS=channels,
        CHANNELS_FIRST=channels_first,
        TO_BYTES=values is None,
        WIDE=height * width * channels >= WIDE_BYTES or any(spans_far(row[1:3], row[3:5]) for row in rows),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        enable_fp_fusion=False,
    )


def spans_far(lengths: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether offsets along some axes need more than 32 bits.

    Args:
        lengths: Lengths of the axes.
        strides: Strides of the axes, in bytes.
    """
    return sum(length * abs(stride) for length, stride in zip(lengths, strides, strict=True)) >= WIDE_BYTES
