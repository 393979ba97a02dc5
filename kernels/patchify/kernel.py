"""`patchify` as one Triton kernel and one launch: each byte is read once, each token written once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl

from ..backend import on_device
from ..normalization import as_integers
from ..pad_stack.kernel import spans_far

_TOKENS = 16
"""Tokens per program: neighbours in a row of patches, whose pixels are adjacent."""
_ELEMENTS = 128
"""Elements of those tokens per step: few enough that the last step wastes little."""


@triton.jit  # type: ignore[untyped-decorator]
def _patchify(  # type: ignore[no-untyped-def]
    table,  # int64[n, 10]: address; frames, height, width; strides of frame, y, x, channel; rows, columns of patches
    values,  # integers of the tokens' size[channels, 256]: the value of each level; not read if TO_BYTES
    cu_seqlens,  # int32[n + 1], contiguous
    tokens,  # integers[S, LENGTH], contiguous
    positions,  # int32[S, 3], contiguous
    LENGTH: tl.constexpr,  # noqa: N803 - constants of the compiler; channels * TIMES * PATCH * PATCH
    TIMES: tl.constexpr,  # noqa: N803
    PATCH: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803 - whether offsets inside a clip need 64 bits, which are slow
    TOKENS: tl.constexpr,  # noqa: N803
    ELEMENTS: tl.constexpr,  # noqa: N803
):
    clip = tl.program_id(1)
    first = tl.load(cu_seqlens + clip)
    begin = tl.program_id(0) * TOKENS  # the grid is that of the longest clip
    count = tl.load(cu_seqlens + clip + 1) - first
    if begin >= count:
        return
    token = begin + tl.arange(0, TOKENS)  # int32[TOKENS], in this clip
    wanted = token < count
    line = table + clip.to(tl.int64) * 10
    source = tl.load(line).to(tl.pointer_type(tl.uint8))
    frames, height, width = tl.load(line + 1), tl.load(line + 2).to(tl.int32), tl.load(line + 3).to(tl.int32)
    along_time, along_y, along_x = tl.load(line + 4), tl.load(line + 5), tl.load(line + 6)
    along_channels = tl.load(line + 7)
    if not WIDE:
        frames, along_time, along_y = frames.to(tl.int32), along_time.to(tl.int32), along_y.to(tl.int32)
        along_x, along_channels = along_x.to(tl.int32), along_channels.to(tl.int32)
    rows, columns = tl.load(line + 8).to(tl.int32), tl.load(line + 9).to(tl.int32)
    column, row, time = token % columns, token // columns % rows, token // columns // rows
    here = (first + begin).to(tl.int64)  # token in all clips
    _write_position(positions + here * 3 + tl.arange(0, TOKENS) * 3, time, row, column, wanted)
    # Each offset is the sum of a term of the token and one of the element, so each pair costs few instructions.
    top, left = row * PATCH, column * PATCH  # int32[TOKENS]
    corner = top * along_y + left * along_x
    below, right = height - top, width - left  # number of pixels from the corner to the edges
    place = (tokens + here * LENGTH) + (tl.arange(0, TOKENS) * LENGTH)[:, None]
    # Most programs are inside an image, where only the end of the elements is masked.
    at_edge = (begin + TOKENS > count) | (tl.min(below) < PATCH) | (tl.min(right) < PATCH)
    for step in range(0, LENGTH, ELEMENTS):
        element = step + tl.arange(0, ELEMENTS)  # int32[ELEMENTS]
        channel = element // (TIMES * PATCH * PATCH)
        y, x = element // PATCH % PATCH, element % PATCH
        offsets = corner[:, None] + (y * along_y + x * along_x + channel * along_channels)[None, :]
        if TIMES == 1:
            offsets += (time * along_time)[:, None]
        else:  # after the end the last frame is repeated
            frame = (time * TIMES)[:, None] + (element // (PATCH * PATCH) % TIMES)[None, :]
            offsets += tl.minimum(frame, frames - 1) * along_time
        looked_up, targets = values + (channel * 256)[None, :], place + element[None, :]
        mask = tl.broadcast_to((element < LENGTH)[None, :], (TOKENS, ELEMENTS))
        if at_edge:
            mask = mask & wanted[:, None]
            inside = mask & (y[None, :] < below[:, None]) & (x[None, :] < right[:, None])
            _write(source + offsets, looked_up, targets, inside, mask, TO_BYTES)
        else:
            _write(source + offsets, looked_up, targets, mask, mask, TO_BYTES)


@triton.jit
def _write_position(place, time, row, column, mask):  # type: ignore[no-untyped-def]
    tl.store(place, time, mask=mask)
    tl.store(place + 1, row, mask=mask)
    tl.store(place + 2, column, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _write(source, looked_up, targets, inside, mask, TO_BYTES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    value = tl.load(source, mask=inside, other=0)
    if not TO_BYTES:
        value = tl.load(looked_up + value.to(tl.int32), mask=inside, other=0)
    tl.store(targets, value, mask=mask)


def patchify_triton(
    clips: Sequence[torch.Tensor],
    grids: Sequence[tuple[int, int, int]],
    patch_size: int,
    frames_per_patch: int,
    values: torch.Tensor | None,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Writes what `patchify_reference` writes; returns int32[n + 1], the cumulative lengths on the device.

    Does not synchronise the CUDA stream.

    Args:
        clips: uint8[F, H, W, C] of any strides, on the device of the tokens; fewer than 65536.
        grids: Patches of each clip along time, rows and columns.
        patch_size: Pixels P along each side of a patch.
        frames_per_patch: Frames T of a patch.
        values: dtype[C, 256] of `values_of_levels`, contiguous, on the device of the tokens; None for bytes.
        tokens: dtype[S, C * T * P * P], contiguous.
        positions: int32[S, 3], contiguous.
    """
    lengths = [math.prod(grid) for grid in grids]
    cu_seqlens = on_device(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), tokens.device)
    if not tokens.numel():
        return cu_seqlens
    # A clip without tokens has no rows to divide by. With 1 the division is defined, and nothing is stored.
    lines = [
        [clip.data_ptr(), *clip.shape[:3], *clip.stride(), max(rows, 1), max(columns, 1)]
        for clip, (_, rows, columns) in zip(clips, grids, strict=True)
    ]
    table = on_device(torch.tensor(lines, dtype=torch.int64), tokens.device)
    _patchify[(triton.cdiv(max(lengths), _TOKENS), len(clips))](
        table,
        table if values is None else as_integers(values),
        cu_seqlens,
        as_integers(tokens),
        positions,
        LENGTH=tokens.shape[1],
        TIMES=frames_per_patch,
        PATCH=patch_size,
        TO_BYTES=values is None,
        WIDE=any(spans_far((*clip.shape,), clip.stride()) for clip in clips),
        TOKENS=_TOKENS,
        ELEMENTS=_ELEMENTS,
        enable_fp_fusion=False,
    )
    return cu_seqlens
