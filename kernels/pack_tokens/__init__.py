"""Packs token sequences of different lengths into rows of one length, for variable-length attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..backend import backend_for

__all__ = ["PackedTokens", "Place", "pack_tokens", "place_sequences"]


class Place(NamedTuple):
    """Where a sequence begins."""

    row: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """Sequences in rows of one length; attention kernels take `tokens.view(-1)` and `cu_seqlens`."""

    tokens: torch.Tensor
    """dtype[R, L]."""

    position_ids: torch.Tensor
    """int32[R, L]: position of a token in its sequence; zero in the padding."""

    cu_seqlens: torch.Tensor
    """int32[m + 1]: the start of each segment of the R * L tokens, and the end of the last one. The padding of a row is
    a segment too, so that no sequence attends to it; empty sequences have no segment."""

    max_seqlen: int
    """Tokens of the longest segment, padding included."""

    places: tuple[Place, ...]
    """One per sequence, on the host."""

    def __repr__(self) -> str:
        shape, dtype, device = tuple(self.tokens.shape), self.tokens.dtype, self.tokens.device
        return f"PackedTokens(tokens={shape} {dtype} on {device}, sequences={len(self.places)})"


class Segment(NamedTuple):
    """A range of the packed tokens."""

    sequence: int
    """Index of the sequence, or -1 for padding."""

    start: int
    """First token in the flattened rows."""

    length: int
    """Number of tokens, at least one."""


def place_sequences(lengths: Sequence[int], row_length: int) -> tuple[Place, ...]:
    """Returns where each sequence begins: in the row of the one before it if there is room, else in a new row.

    The order is kept, so that the packing hook decides which sequences share a row.

    Args:
        lengths: Tokens of each sequence.
        row_length: Tokens of a row.

    Raises:
        ValueError: A row has no tokens, or a sequence is longer than a row.
    """
    if row_length < 1:
        raise ValueError(f"{row_length = }: a row must have at least one token.")
    places: list[Place] = []
    row = column = 0
    for index, length in enumerate(lengths):
        if length > row_length:
            raise ValueError(f"Sequence {index} has {length} tokens, a row {row_length}: cut it, or give longer rows.")
        if column + length > row_length:
            row, column = row + 1, 0
        places.append(Place(row, column))
        column += length
    return tuple(places)


def segments_of(lengths: Sequence[int], places: Sequence[Place], row_length: int) -> list[Segment]:
    """Returns the segments of all rows in order, without gaps: sequences, and the padding of each row.

    Args:
        lengths: Tokens of each sequence.
        places: From `place_sequences`.
        row_length: Tokens of a row.
    """
    segments: list[Segment] = []
    end = 0
    for index, (length, place) in enumerate(zip(lengths, places, strict=True)):
        start = place.row * row_length + place.column
        if start > end:
            segments.append(Segment(-1, end, start - end))
        if length:
            segments.append(Segment(index, start, length))
        end = start + length
    rows = places[-1].row + 1 if places else 0
    if end < rows * row_length:
        segments.append(Segment(-1, end, rows * row_length - end))
    return segments


def pack_tokens_reference(
    sequences: Sequence[torch.Tensor],
    segments: Sequence[Segment],
    padding: int,
    tokens: torch.Tensor,
    position_ids: torch.Tensor,
) -> None:
    """Writes each sequence to its segment, with positions from zero, and padding tokens and zeros to the others.

    This is the specification of the kernel, and what runs where Triton does not.

    Args:
        sequences: dtype[length], of any stride.
        segments: Cover all tokens.
        padding: Padding token.
        tokens: dtype[R * L], contiguous.
        position_ids: int32[R * L], contiguous.
    """
    longest = max((segment.length for segment in segments), default=0)
    positions = torch.arange(longest, dtype=torch.int32, device=tokens.device)
    for sequence, start, length in segments:
        if sequence < 0:
            tokens[start : start + length] = padding
            position_ids[start : start + length] = 0
        else:
            tokens[start : start + length] = sequences[sequence]
            position_ids[start : start + length] = positions[:length]


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
