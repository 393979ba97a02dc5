"""Who sees whom in packed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def packed_causal_mask(cu_seqlens: torch.Tensor, rows: int, row_length: int) -> torch.Tensor:
    """Returns bool[R, 1, L, L]: true where a place (third axis) sees another (fourth): of its own sample, not after it.

    It is the dense form of what attention kernels of variable length do with `cu_seqlens`. Does not synchronise the
    stream.

    Args:
        cu_seqlens: int32[m + 1]: where each sample begins in the R * L places, from 0 on, and their end.
        rows: R.
        row_length: L.
    """
    import torch

    lengths = cu_seqlens.diff().to(torch.int64)
    numbers = torch.arange(len(lengths), device=cu_seqlens.device)
    segments = torch.repeat_interleave(numbers, lengths, output_size=rows * row_length).view(rows, row_length)
    causal = torch.ones(row_length, row_length, dtype=torch.bool, device=cu_seqlens.device).tril_()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]
