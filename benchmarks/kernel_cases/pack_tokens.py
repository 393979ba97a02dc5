"""`pack_tokens`: sequences of 100 to 4,000 tokens into rows of 4,096."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.kernel_cases.case import KernelCase, Size, total_bytes

SIZES: dict[Size, tuple[int, tuple[int, int], int]] = {
    "small": (16, (10, 200), 512),
    "large": (16384, (100, 4000), 4096),
}
"""Sequences, range of their lengths, tokens of a row."""
PADDING = 7


def cases(device: str, sizes: Sequence[Size]) -> Iterator[KernelCase]:
    """Yields the cases; each makes its data on demand."""
    for size in sizes:
        yield _case(size, device)


def _case(size: Size, device: str) -> KernelCase:
    import torch
    from energon_dali.kernels.pack_tokens import pack_tokens, pack_tokens_reference, place_sequences, segments_of

    count, limits, row_length = SIZES[size]
    draw = random.Random(3)
    lengths = [draw.randint(*limits) for _ in range(count)]
    sequences = list(torch.arange(sum(lengths), device=device).split(lengths))  # type: ignore[no-untyped-call]
    rows = place_sequences(lengths, row_length)[-1].row + 1

    def ours() -> list[Any]:
        made = pack_tokens(sequences, row_length, padding=PADDING)
        return [made.tokens.view(-1), made.position_ids.view(-1), made.cu_seqlens]

    # What follows places the sequences in Python too, as every way of doing it has to.
    def placed() -> tuple[list[Any], list[int]]:
        places = place_sequences(lengths, row_length)
        segments = segments_of(lengths, places, row_length)
        return segments, [*(segment.start for segment in segments), (places[-1].row + 1) * row_length]

    def reference() -> list[Any]:
        segments, starts = placed()
        tokens = torch.empty(starts[-1], dtype=torch.int64, device=device)
        positions = torch.empty(starts[-1], dtype=torch.int32, device=device)
        pack_tokens_reference(sequences, segments, PADDING, tokens, positions)
        return [tokens, positions, torch.tensor(starts, dtype=torch.int32, device=device)]

    def concatenated() -> list[Any]:
        segments, starts = placed()
        longest = max(segment.length for segment in segments)
        padding = torch.full((row_length,), PADDING, device=device)
        counted, nothing = torch.arange(longest, dtype=torch.int32, device=device), padding.new_zeros(row_length).int()
        parts = [sequences[one.sequence] if one.sequence >= 0 else padding[: one.length] for one in segments]
        positions = [(counted if one.sequence >= 0 else nothing)[: one.length] for one in segments]
        return [torch.cat(parts), torch.cat(positions), torch.tensor(starts, dtype=torch.int32, device=device)]

    def scattered() -> list[Any]:
        segments, starts = placed()
        own = [segment for segment in segments if segment.sequence >= 0]
        numbers = torch.tensor([[one.start, one.length] for one in own], device=device)
        counted = torch.arange(sum(lengths), device=device)
        total = sum(lengths)
        before = (numbers[:, 1].cumsum(0) - numbers[:, 1]).repeat_interleave(numbers[:, 1], output_size=total)
        inside = counted - before
        targets = numbers[:, 0].repeat_interleave(numbers[:, 1], output_size=total) + inside
        tokens = torch.full((starts[-1],), PADDING, device=device)
        positions = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        tokens[targets] = torch.cat([sequences[one.sequence] for one in own])
        positions[targets] = inside.to(torch.int32)
        return [tokens, positions, torch.tensor(starts, dtype=torch.int32, device=device)]

    return KernelCase(
        operation="pack_tokens",
        size=size,
        variant="int64",
        shapes=f"{count} sequences into {rows} rows of {row_length}",
        bytes_moved=total_bytes(*sequences) + rows * row_length * 12,
        ours=ours,
        reference=reference,
        pytorch={"cat": concatenated, "cat, scatter": scattered},
    )
