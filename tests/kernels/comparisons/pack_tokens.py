"""Compares `pack_tokens`' Triton kernel with its reference, number by number; `check_triton` runs it."""

from __future__ import annotations

import torch
from energon_dali.kernels.pack_tokens import pack_tokens_reference, place_sequences, segments_of

CASES = [([0], 3), ([1], 1), ([3, 4, 0, 5, 5, 1], 9), ([1023, 1, 1025, 1024], 2049), ([0, 7, 0, 7, 0], 7), ([5], 1300)]
"""Lengths and row length: nothing, one token, full rows, around a block of 1024, long padding."""


def compare(device: str) -> int:
    """Returns the number of comparisons; every output is poisoned, so that an element left out shows.

    Raises:
        AssertionError: A number differs.
    """
    from energon_dali.kernels.pack_tokens.kernel import pack_tokens_triton

    count = 0
    generator = torch.Generator().manual_seed(3)
    for lengths, row_length in CASES:
        places = place_sequences(lengths, row_length)
        segments = segments_of(lengths, places, row_length)
        total = (places[-1].row + 1) * row_length
        for dtype, padding in ((torch.uint8, 255), (torch.int16, -100), (torch.int32, 1), (torch.int64, -(2**62))):
            step = 1 + len(lengths) % 2  # every second element of something larger, in some cases
            limits = torch.iinfo(dtype)
            sequences = [
                torch.randint(limits.min, limits.max, (length * step,), dtype=dtype, generator=generator).to(device)[
                    ::step
                ]
                for length in lengths
            ]
            wanted = [torch.empty(total, dtype=kind, device=device) for kind in (dtype, torch.int32)]
            pack_tokens_reference(sequences, segments, padding, *wanted)
            for poison in (7, 99):
                got = [torch.full_like(tensor, poison) for tensor in wanted]
                cu_seqlens = pack_tokens_triton(sequences, segments, padding, *got)
                assert torch.equal(got[0], wanted[0]), (lengths, dtype)
                assert torch.equal(got[1], wanted[1]), (lengths, dtype)
                assert cu_seqlens.tolist() == [*(segment.start for segment in segments), total], (lengths, dtype)
                count += 1
    return count
