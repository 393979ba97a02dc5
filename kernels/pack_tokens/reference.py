"""The specification of `pack_tokens` in plain PyTorch, which also runs on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .rows import Segment

if TYPE_CHECKING:
    import torch


def pack_tokens_reference(
    sequences: Sequence[torch.Tensor],
    segments: Sequence[Segment],
    padding: int,
    tokens: torch.Tensor,
    position_ids: torch.Tensor,
) -> None:
    """Writes each sequence to its segment, with positions from zero, and padding tokens and zeros to the others.

    Args:
        sequences: dtype[length], of any stride.
        segments: Cover all tokens.
        padding: Padding token.
        tokens: dtype[R * L], contiguous.
        position_ids: int32[R * L], contiguous.
    """
    import torch

    longest = max((segment.length for segment in segments), default=0)
    positions = torch.arange(longest, dtype=torch.int32, device=tokens.device)
    for sequence, start, length in segments:
        if sequence < 0:
            tokens[start : start + length] = padding
            position_ids[start : start + length] = 0
        else:
            tokens[start : start + length] = sequences[sequence]
            position_ids[start : start + length] = positions[:length]
