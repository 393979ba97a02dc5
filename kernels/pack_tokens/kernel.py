"""`pack_tokens` as one Triton kernel and one launch: each token is read once and written once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ..backend import on_device

_BLOCK = 1024
"""Tokens of a segment per program."""


@triton.jit  # type: ignore[untyped-decorator]
def _pack_tokens(  # type: ignore[no-untyped-def]
    table,  # int64[m, 2]: address of the first token and stride in elements; for padding 0 and the padding token
    cu_seqlens,  # int32[m + 1], contiguous
    tokens,  # dtype[R * L], contiguous
    position_ids,  # int32[R * L], contiguous
    BLOCK: tl.constexpr,  # noqa: N803 - a constant of the compiler
):
    segment = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_seqlens + segment)
    length = tl.load(cu_seqlens + segment + 1) - start
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # int32[BLOCK]
    mask = position < length  # the grid is that of the longest segment
    address = tl.load(table + segment * 2)
    stride_or_padding = tl.load(table + segment * 2 + 1)
    is_sequence = position < tl.where(address != 0, length, 0)  # int1[BLOCK]: false in padding
    source = address.to(tl.pointer_type(tokens.dtype.element_ty))
    offsets = position.to(tl.int64) * stride_or_padding
    read = tl.load(source + offsets, mask=is_sequence, other=0)
    to_token = (start + position).to(tl.int64)
    tl.store(tokens + to_token, tl.where(is_sequence, read, stride_or_padding.to(read.dtype)), mask=mask)
    tl.store(position_ids + to_token, tl.where(is_sequence, position, 0), mask=mask)


def pack_tokens_triton(
    sequences: Sequence[torch.Tensor],
    segments: Sequence[tuple[int, int, int]],
    padding: int,
    tokens: torch.Tensor,
    position_ids: torch.Tensor,
) -> torch.Tensor:
    """Writes what `pack_tokens_reference` writes, and returns int32[m + 1], the starts on the device.

    Does not synchronise the CUDA stream.

    Args:
        sequences: dtype[length], of any stride, on the device of the tokens.
        segments: Index of the sequence (-1 for padding), first token and length of each; they cover all tokens.
        padding: Token of the padding.
        tokens: dtype[R * L], contiguous; no segment of 2**26 or more.
        position_ids: int32[R * L], contiguous.
    """
    starts = torch.tensor([*(start for _, start, _ in segments), tokens.numel()], dtype=torch.int32)
    cu_seqlens = on_device(starts, tokens.device)
    if not segments:
        return cu_seqlens
    table = torch.tensor(
        [
            [sequences[index].data_ptr(), sequences[index].stride(0)] if index >= 0 else [0, padding]
            for index, _, _ in segments
        ],
        dtype=torch.int64,
    )
    blocks = triton.cdiv(max(length for _, _, length in segments), _BLOCK)
    _pack_tokens[(len(segments), blocks)](
        on_device(table, tokens.device), cu_seqlens, tokens, position_ids, BLOCK=_BLOCK, enable_fp_fusion=False
    )
    return cu_seqlens
