"""`patchify` as one Triton kernel and one launch: each byte is read once, each token written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ..pad_stack.kernel import normalized_level, on_device, store_float
from .patches import Grid, token_starts

if TYPE_CHECKING:
    import torch

_TOKENS = 8
"""Tokens per program: neighbours in a row of patches, whose pixels lie side by side."""
_ELEMENTS = 256
"""Elements of those tokens that are worked on at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _patchify(  # type: ignore[no-untyped-def]
    table,  # int64[n, 10]: address; frames, height, width; strides of frame, y, x, channel; rows, columns of patches
    coefficients,  # float32[2, CHANNELS], contiguous; not read if TO_BYTES
    cu_seqlens,  # int32[n + 1], contiguous
    tokens,  # dtype[S, CHANNELS * TIMES * PATCH * PATCH], contiguous
    positions,  # int32[S, 3], contiguous
    CHANNELS: tl.constexpr,  # noqa: N803 - constants of the compiler
    TIMES: tl.constexpr,  # noqa: N803
    PATCH: tl.constexpr,  # noqa: N803
    TO_BFLOAT16: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
    ELEMENTS: tl.constexpr,  # noqa: N803
):
    clip = tl.program_id(1)
    first = tl.load(cu_seqlens + clip)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)  # int32[TOKENS], in this clip
    wanted = token < tl.load(cu_seqlens + clip + 1) - first  # the grid is that of the longest clip
    line = table + clip.to(tl.int64) * 10
    source = tl.load(line).to(tl.pointer_type(tl.uint8))
    frames, height, width = tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    rows, columns = tl.load(line + 8).to(tl.int32), tl.load(line + 9).to(tl.int32)
    column = token % columns
    row = token // columns % rows
    time = token // columns // rows
    to_token = (first + token).to(tl.int64)  # int64[TOKENS], in all clips
    tl.store(positions + to_token * 3, time, mask=wanted)
    tl.store(positions + to_token * 3 + 1, row, mask=wanted)
    tl.store(positions + to_token * 3 + 2, column, mask=wanted)
    LENGTH: tl.constexpr = CHANNELS * TIMES * PATCH * PATCH  # noqa: N806
    for begin in range(0, LENGTH, ELEMENTS):
        element = begin + tl.arange(0, ELEMENTS)  # int32[ELEMENTS]
        channel = element // (TIMES * PATCH * PATCH)
        y = (row * PATCH)[:, None] + (element // PATCH % PATCH)[None, :]  # int32[TOKENS, ELEMENTS], likewise below
        x = (column * PATCH)[:, None] + (element % PATCH)[None, :]
        frame = (time * TIMES)[:, None] + (element // (PATCH * PATCH) % TIMES)[None, :]
        frame = tl.minimum(frame.to(tl.int64), frames - 1)
        mask = wanted[:, None] & (element < LENGTH)[None, :]
        inside = mask & (y < height) & (x < width)
        offsets = frame * tl.load(line + 4) + y * tl.load(line + 5) + x * tl.load(line + 6)
        offsets += (channel * tl.load(line + 7))[None, :]
        level = tl.load(source + offsets, mask=inside, other=0)
        target = to_token[:, None] * LENGTH + element[None, :]
        if TO_BYTES:
            tl.store(tokens + target, level, mask=mask)
        else:
            known = element < LENGTH
            shift = tl.load(coefficients + channel, mask=known, other=0.0)[None, :]
            divisor = tl.load(coefficients + CHANNELS + channel, mask=known, other=1.0)[None, :]
            store_float(tokens, target, mask, normalized_level(level, shift, divisor, inside), TO_BFLOAT16)


def patchify_triton(
    clips: Sequence[torch.Tensor],
    patch_size: int,
    frames_per_patch: int,
    coefficients: torch.Tensor | None,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Writes what `reference.patchify_reference` writes, and returns int32[n + 1], the cumulated lengths on the device.

    Does not synchronise the stream.

    Args:
        clips: uint8[F, H, W, C] of any strides, on the device of the tokens; fewer than 65536.
        patch_size: Pixels P along each side of a patch.
        frames_per_patch: Frames T of a patch.
        coefficients: float32[2, C] on the CPU, or None for bytes.
        tokens: dtype[S, C * T * P * P], contiguous.
        positions: int32[S, 3], contiguous.
    """
    import torch

    grids = [Grid.of(clip, patch_size, frames_per_patch) for clip in clips]
    cu_seqlens = on_device(torch.tensor(token_starts(grids), dtype=torch.int32), tokens.device)
    if not tokens.numel():
        return cu_seqlens
    channels = clips[0].shape[3]
    # A clip without tokens has no rows to divide by: 1 keeps that defined, and nothing of it is stored.
    table = torch.tensor(
        [
            [clip.data_ptr(), *clip.shape[:3], *clip.stride(), max(grid.rows, 1), max(grid.columns, 1)]
            for clip, grid in zip(clips, grids, strict=True)
        ],
        dtype=torch.int64,
    )  # int64[n, 10]
    if coefficients is None:
        coefficients = torch.zeros((2, channels), dtype=torch.float32)
    _patchify[(triton.cdiv(max(grid.tokens for grid in grids), _TOKENS), len(clips))](
        on_device(table, tokens.device), on_device(coefficients, tokens.device), cu_seqlens, tokens, positions,
        CHANNELS=channels, TIMES=frames_per_patch, PATCH=patch_size, TO_BFLOAT16=tokens.dtype == torch.bfloat16,
        TO_BYTES=tokens.dtype == torch.uint8, TOKENS=_TOKENS, ELEMENTS=_ELEMENTS, enable_fp_fusion=False,
    )  # fmt: skip
    return cu_seqlens
