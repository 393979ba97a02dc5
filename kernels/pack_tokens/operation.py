"""The operation that callers use: checks its arguments, and runs the kernel on a GPU and the reference elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend import backend_for
from .reference import pack_tokens_reference
from .rows import PackedTokens, place_sequences, segments_of

if TYPE_CHECKING:
    import torch

_MAX_ROW = 2**26 - 1024
"""Most tokens of a row, because the second axis of a launch counts its blocks."""
_MAX_TOKENS = 2**31 - 1
"""Most tokens of one call, because cu_seqlens has 32 bits."""


def pack_tokens(sequences: Sequence[torch.Tensor], row_length: int, *, padding: int = 0) -> PackedTokens:
    """Returns sequences in rows of one length, with position ids and segment boundaries; always new tensors.

    A sequence goes to the row of the one before it if there is room, else to a new row (`place_sequences`); none is
    cut. Runs on the current CUDA stream of the sequences' device and does not wait for it. On a GPU it is one Triton
    kernel, where Triton is installed. Every backend returns the same numbers.

    Args:
        sequences: n >= 1 tensors of one dtype (uint8, int16, int32 or int64), each with one axis, on one device.
        row_length: Tokens of a row.
        padding: Token at the end of rows that are not full.

    Raises:
        ValueError: There are no sequences, they are not integers, have more axes, or differ in dtype or device; one is
            longer than a row; a row has no tokens or more than 2**26 - 1024, or all have 2**31 or more; or the padding
            is not a value of the dtype.
    """
    import torch

    _check(sequences, padding)
    first = sequences[0]
    lengths = [len(sequence) for sequence in sequences]
    places = place_sequences(lengths, row_length)
    rows = places[-1].row + 1
    if row_length > _MAX_ROW or rows * row_length > _MAX_TOKENS:
        raise ValueError(
            f"{rows} rows of {row_length} tokens: at most {_MAX_ROW} in a row and {_MAX_TOKENS} in all. Give shorter "
            "rows, or call it for parts of the sequences."
        )
    segments = segments_of(lengths, places, row_length)
    tokens = torch.empty((rows, row_length), dtype=first.dtype, device=first.device)
    position_ids = torch.empty((rows, row_length), dtype=torch.int32, device=first.device)
    if backend_for("pack_tokens", first.device) == "reference":
        pack_tokens_reference(sequences, segments, padding, tokens.view(-1), position_ids.view(-1))
        starts = [*(segment.start for segment in segments), tokens.numel()]
        cu_seqlens = torch.tensor(starts, dtype=torch.int32, device=first.device)
    else:
        from .kernel import pack_tokens_triton

        with torch.cuda.device(first.device):
            cu_seqlens = pack_tokens_triton(sequences, segments, padding, tokens.view(-1), position_ids.view(-1))
    return PackedTokens(tokens, position_ids, cu_seqlens, max(segment.length for segment in segments), places)


def _check(sequences: Sequence[torch.Tensor], padding: int) -> None:
    import torch

    if not sequences:
        raise ValueError("No sequences were given: give at least one, which decides dtype and device.")
    first = sequences[0]
    allowed = (torch.uint8, torch.int16, torch.int32, torch.int64)
    for index, sequence in enumerate(sequences):
        given = f"sequence {index} has shape {tuple(sequence.shape)}, {sequence.dtype}, on {sequence.device}"
        if sequence.ndim != 1 or sequence.dtype not in allowed:
            raise ValueError(f"{given}: sequences have one axis, and uint8, int16, int32 or int64 tokens.")
        if sequence.dtype != first.dtype or sequence.device != first.device:
            raise ValueError(f"{given}, the first one {first.dtype} on {first.device}: all must have the same.")
    limits = torch.iinfo(first.dtype)
    if not limits.min <= padding <= limits.max:
        raise ValueError(f"{padding = } for {first.dtype}: give a number from {limits.min} to {limits.max}.")
