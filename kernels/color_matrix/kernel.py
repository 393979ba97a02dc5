"""`convert_colors` as one Triton kernel: each byte is read once, each result written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..normalization import as_integers

_BLOCK = 1024
"""Pixels per program: 3 KiB read, 3 to 12 KiB written."""
_GROUPS = 512
"""The same in groups of four pixels: 12 instructions for a byte, 17 for a bfloat16, where single pixels take 20 and 39
(counted in the machine code for compute capability 9.0)."""


@triton.jit  # type: ignore[untyped-decorator]
def _level(red, green, blue, weights, BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    # weights: int32[4], the weights of red, green, blue and the offset of one channel
    total = red * tl.load(weights) + green * tl.load(weights + 1) + blue * tl.load(weights + 2) + tl.load(weights + 3)
    rounded = (total + (1 << (BITS - 1))) >> BITS  # an arithmetic shift: floor, also below zero
    return tl.minimum(tl.maximum(rounded, 0), 255)


@triton.jit  # type: ignore[untyped-decorator]
def _convert(  # type: ignore[no-untyped-def]
    frames,  # uint8[N * F, pixels, 3], contiguous
    coefficients,  # int32[N, 3, 4], contiguous
    values,  # integers of the result's size[256]: the value of each level; not read if the result is bytes
    result,  # [N * F, 3, pixels] if CHANNELS_FIRST, else [N * F, pixels, 3]; contiguous
    frames_per_clip,
    pixels,
    blocks_per_frame,
    CHANNELS_FIRST: tl.constexpr,  # noqa: N803 - constants of the compiler
    TO_BYTES: tl.constexpr,  # noqa: N803
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
        value = _level(red, green, blue, rows + 4 * channel, BITS)
        if not TO_BYTES:
            value = tl.load(values + value, mask=mask, other=0)
        offsets = first + pixel + tl.cast(pixels, tl.int64) * channel if CHANNELS_FIRST else first + 3 * pixel + channel
        tl.store(result + offsets, value.to(result.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _byte(word, PLACE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    return (word >> (8 * PLACE)) & 255


@triton.jit
def _word(byte0, byte1, byte2, byte3):  # type: ignore[no-untyped-def]
    return byte0 | (byte1 << 8) | (byte2 << 16) | (byte3 << 24)


@triton.jit  # type: ignore[untyped-decorator]
def _store_four(  # type: ignore[no-untyped-def]
    result,
    first,  # index of the plane's first group of four neighbours: one integer of 4 or 8 bytes, or four of 4
    group,
    mask,
    level0,
    level1,
    level2,
    level3,
    values,
    WORDS: tl.constexpr,  # noqa: N803
):
    if WORDS == 1:
        tl.store(result + first + group, _word(level0, level1, level2, level3), mask=mask)
    else:
        value0, value1 = tl.load(values + level0, mask=mask, other=0), tl.load(values + level1, mask=mask, other=0)
        value2, value3 = tl.load(values + level2, mask=mask, other=0), tl.load(values + level3, mask=mask, other=0)
        if WORDS == 2:
            low = (value0.to(tl.int32) & 65535) | (value1.to(tl.int32) << 16)
            high = (value2.to(tl.int32) & 65535) | (value3.to(tl.int32) << 16)
            both = (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
            tl.store(result + first + group, both, mask=mask)
        else:
            place = result + first * 4 + group * 4
            tl.store(place, value0, mask=mask)
            tl.store(place + 1, value1, mask=mask)
            tl.store(place + 2, value2, mask=mask)
            tl.store(place + 3, value3, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _convert_words(  # type: ignore[no-untyped-def]
    frames,  # int32[N * F, groups, 3], contiguous: four pixels are three words
    coefficients,  # int32[N, 3, 4], contiguous
    values,  # integers of the result's size[256]: the value of each level; not read if WORDS is 1
    result,  # in units that WORDS says: [N * F, 3, groups] if CHANNELS_FIRST, else [N * F, groups, 3] of bytes
    frames_per_clip,
    groups,  # pixels / 4
    blocks_per_frame,
    CHANNELS_FIRST: tl.constexpr,  # noqa: N803
    WORDS: tl.constexpr,  # noqa: N803 - of 4 bytes, in four elements of the result: int32 if 1 or 4, int64 if 2
    BITS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    frame = program // blocks_per_frame
    group = (program - frame * blocks_per_frame) * BLOCK + tl.arange(0, BLOCK)  # int32[BLOCK]
    mask = group < groups
    first = frame.to(tl.int64) * groups * 3
    source = frames + first
    word0 = tl.load(source + 3 * group, mask=mask, other=0)
    word1 = tl.load(source + (3 * group + 1), mask=mask, other=0)
    word2 = tl.load(source + (3 * group + 2), mask=mask, other=0)
    red0, green0, blue0, red1 = _byte(word0, 0), _byte(word0, 1), _byte(word0, 2), _byte(word0, 3)
    green1, blue1, red2, green2 = _byte(word1, 0), _byte(word1, 1), _byte(word1, 2), _byte(word1, 3)
    blue2, red3, green3, blue3 = _byte(word2, 0), _byte(word2, 1), _byte(word2, 2), _byte(word2, 3)
    rows = coefficients + (frame // frames_per_clip).to(tl.int64) * 12
    r0, r1 = _level(red0, green0, blue0, rows, BITS), _level(red1, green1, blue1, rows, BITS)
    r2, r3 = _level(red2, green2, blue2, rows, BITS), _level(red3, green3, blue3, rows, BITS)
    g0, g1 = _level(red0, green0, blue0, rows + 4, BITS), _level(red1, green1, blue1, rows + 4, BITS)
    g2, g3 = _level(red2, green2, blue2, rows + 4, BITS), _level(red3, green3, blue3, rows + 4, BITS)
    b0, b1 = _level(red0, green0, blue0, rows + 8, BITS), _level(red1, green1, blue1, rows + 8, BITS)
    b2, b3 = _level(red2, green2, blue2, rows + 8, BITS), _level(red3, green3, blue3, rows + 8, BITS)
    if CHANNELS_FIRST:
        _store_four(result, first, group, mask, r0, r1, r2, r3, values, WORDS)
        _store_four(result, first + groups, group, mask, g0, g1, g2, g3, values, WORDS)
        _store_four(result, first + groups + groups, group, mask, b0, b1, b2, b3, values, WORDS)
    else:
        place = result + first
        tl.store(place + 3 * group, _word(r0, g0, b0, r1), mask=mask)
        tl.store(place + (3 * group + 1), _word(g1, b1, r2, g2), mask=mask)
        tl.store(place + (3 * group + 2), _word(b2, r3, g3, b3), mask=mask)


def convert_colors_triton(
    frames: torch.Tensor,
    coefficients: torch.Tensor,
    values: torch.Tensor | None,
    result: torch.Tensor,
    channels_first: bool,
    fraction_bits: int,
) -> None:
    """Writes what `convert_colors_reference` returns into `result`; does not synchronise the stream.

    Args:
        frames: uint8[N, F, H, W, 3], contiguous.
        coefficients: int32[N, 3, 4], contiguous.
        values: dtype[1, 256] of `values_of_levels`, on the device of the frames; None for bytes.
        result: uint8 or a floating type; contiguous, [N, F, 3, H, W] if channels_first, else [N, F, H, W, 3].
        channels_first: Layout of the result.
        fraction_bits: Coefficients are multiples of 2**-fraction_bits.
    """
    clips, frames_per_clip, height, width, _ = frames.shape
    pixels = height * width
    if not frames.numel():
        return
    table = coefficients if values is None else as_integers(values)
    words = result.element_size()
    # Byte by byte the kernel would be bound by instructions, not memory, so four pixels are read and written as words.
    in_words = pixels % 4 == 0 and frames.data_ptr() % 4 == 0 and result.data_ptr() % 8 == 0
    if in_words and (channels_first or values is None) and pixels * 3 < 2**31:
        unit = torch.int64 if words == 2 else torch.int32
        blocks = triton.cdiv(pixels // 4, _GROUPS)
        _convert_words[(clips * frames_per_clip * blocks,)](
            frames.view(-1).view(torch.int32),
            coefficients,
            table,
            result.view(-1).view(unit),
            frames_per_clip,
            pixels // 4,
            blocks,
            CHANNELS_FIRST=channels_first,
            WORDS=words,
            BITS=fraction_bits,
            BLOCK=_GROUPS,
            enable_fp_fusion=False,
        )
        return
    blocks = triton.cdiv(pixels, _BLOCK)
    _convert[(clips * frames_per_clip * blocks,)](
        frames,
        coefficients,
        table,
        as_integers(result),
        frames_per_clip,
        pixels,
        blocks,
        CHANNELS_FIRST=channels_first,
        TO_BYTES=values is None,
        BITS=fraction_bits,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )
