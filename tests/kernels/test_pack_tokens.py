"""Sequences packed into rows: each is read back from its row and compared."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from energon_dali.kernels.pack_tokens import pack_tokens, place_sequences
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.uint8, torch.int16, torch.int32, torch.int64]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=14), more=st.integers(0, 9), dtype=st.sampled_from(DTYPES)
)
def test_every_sequence_lies_whole_in_one_row_and_all_else_is_padding(lengths: Any, more: int, dtype: Any) -> None:
    row_length = max(*lengths, 1) + more
    sequences = [torch.arange(1 + i, 1 + i + 2 * length, dtype=dtype)[::2] for i, length in enumerate(lengths)]
    got = pack_tokens(sequences, row_length, padding=99)
    tokens, positions = torch.full_like(got.tokens, 99), torch.zeros_like(got.position_ids)
    for sequence, (row, column) in zip(sequences, got.places, strict=True):
        end = column + len(sequence)
        assert end <= row_length
        assert (tokens[row, column:end] == 99).all()  # nothing is written here yet
        tokens[row, column:end] = sequence
        positions[row, column:end] = torch.arange(len(sequence), dtype=torch.int32)
    assert torch.equal(got.tokens, tokens)
    assert torch.equal(got.position_ids, positions)
    assert list(got.places) == sorted(got.places)  # the order is kept
    assert (got.tokens.dtype, got.tokens.shape[0]) == (dtype, got.places[-1].row + 1)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=14), more=st.integers(0, 9))
def test_segments_are_the_sequences_and_the_padding_of_each_row(lengths: Any, more: int) -> None:
    row_length = max(*lengths, 1) + more
    got = pack_tokens([torch.full((length,), 5) for length in lengths], row_length, padding=-1)
    flat = got.tokens.view(-1)
    starts = got.cu_seqlens.tolist()
    segments = [flat[start:end] for start, end in itertools.pairwise(starts)]
    assert (starts[0], starts[-1], got.cu_seqlens.dtype) == (0, flat.numel(), torch.int32)
    assert [len(part) for part in segments if (part == 5).all()] == [length for length in lengths if length]
    assert all(len(part) and (part == part[0]).all() for part in segments)
    # Padding reaches to the end of its row, never further.
    ends = [end for part, end in zip(segments, starts[1:], strict=True) if part[0] == -1]
    assert all(end % row_length == 0 for end in ends)
    assert len(ends) == (flat.view(-1, row_length)[:, -1] == -1).sum()
    assert got.max_seqlen == max(map(len, segments))


def test_a_row_is_filled_to_its_last_token() -> None:
    assert place_sequences([3, 4, 0, 3, 7], 7) == ((0, 0), (0, 3), (0, 7), (1, 0), (2, 0))
    got = pack_tokens([torch.arange(3), torch.arange(4)], 7)
    assert got.cu_seqlens.tolist() == [0, 3, 7]
    assert got.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert "tokens=(1, 7) torch.int64 on cpu, sequences=2" in repr(got)


def test_wrong_arguments_are_named() -> None:
    one = torch.arange(5)
    cases: list[tuple[Any, int, dict[str, Any], str]] = [
        ([], 4, {}, "No sequences were given"),
        ([one, one[None]], 8, {}, "sequence 1 has shape .* one axis"),
        ([one.to(torch.float32)], 8, {}, "uint8, int16, int32 or int64"),
        ([one, one.to(torch.int32)], 8, {}, "sequence 1 .*all must have the same"),
        ([one[:2], one], 4, {}, "Sequence 1 has 5 tokens, a row 4: cut it"),
        ([one[:0]], 0, {}, "at least one token"),
        ([one.to(torch.uint8)], 8, {"padding": -1}, "a number from 0 to 255"),
        ([one], 1 << 26, {}, "1 rows of 67108864 tokens: at most 67107840"),
    ]
    for sequences, row_length, options, message in cases:
        with pytest.raises(ValueError, match=message):
            pack_tokens(sequences, row_length, **options)
