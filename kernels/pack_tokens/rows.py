"""The places of sequences in rows, as integers on the host, and what `pack_tokens` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


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
