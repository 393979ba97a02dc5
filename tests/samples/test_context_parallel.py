"""Batches are cut for context parallelism as models expect it, and fields go to the ranks that need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.samples.context_parallel import (
    ContextCut,
    cut_sequence,
    items_of_rank,
    pad_lengths,
    padding_multiple,
    positions_of_rank,
)
from energon_dali.samples.delivery import MEGATRON, Delivery, Place

SIZES = st.sampled_from([1, 2, 3, 4, 8])


def of_transformer_engine(starts: list[int], rank: int, size: int) -> list[int]:
    """The positions by the formula of Transformer Engine's kernel, one token after the other."""
    found = []
    own = [start // size for start in starts]
    for token in range(starts[-1] // size):
        document = max(number for number, start in enumerate(own[:-1]) if start <= token)
        while own[document + 1] == own[document]:
            document += 1
        length = own[document + 1] - own[document]
        index = token - own[document]
        offset = rank if index < length // 2 else (size - 1) * 2 - rank
        found.append(index + own[document] * size + length // 2 * offset)
    return found


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6), size=SIZES)
def test_the_zigzag_of_a_pack_is_that_of_transformer_engine(lengths: list[int], size: int) -> None:
    starts = pad_lengths(lengths, padding_multiple(size) if size > 1 else 2)
    parts = [positions_of_rank(starts, rank, size).tolist() for rank in range(size)]
    assert parts == [of_transformer_engine(starts.tolist(), rank, size) for rank in range(size)]
    assert sorted(position for part in parts for position in part) == list(range(starts[-1]))


def test_chunks_of_a_sequence() -> None:
    tokens = torch.arange(16).reshape(2, 8)
    assert cut_sequence(tokens, 0, 2).tolist() == [[0, 1, 6, 7], [8, 9, 14, 15]]
    assert cut_sequence(tokens, 1, 2).tolist() == [[2, 3, 4, 5], [10, 11, 12, 13]]
    assert cut_sequence(tokens, 1, 2, layout="contiguous").tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert cut_sequence(tokens.T, 1, 2, dim=0, layout="contiguous").tolist() == [[4, 12], [5, 13], [6, 14], [7, 15]]


@given(count=st.integers(0, 30), size=SIZES)
def test_whole_items(count: int, size: int) -> None:
    parts = [items_of_rank(count, rank, size) for rank in range(size)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("context", "tensor", "sequence_parallel", "also", "multiple"),
    [(1, 1, False, 1, 1), (2, 4, False, 1, 4), (2, 4, True, 1, 16), (1, 4, True, 1, 4), (4, 2, False, 32, 32)],
)
def test_padding(context: int, tensor: int, sequence_parallel: bool, also: int, multiple: int) -> None:
    assert padding_multiple(context, tensor, sequence_parallel=sequence_parallel, also=also) == multiple


def test_what_cannot_be_cut_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Document 1 has 6 tokens"):
        positions_of_rank([0, 8, 14], 0, 2)
    with pytest.raises(ConfigError, match="cannot be cut into 3"):
        positions_of_rank([0, 8], 0, 3, layout="contiguous")
    with pytest.raises(ConfigError, match="end at token 8"):
        cut_sequence(torch.zeros(1, 12), 0, 2, starts=[0, 8])
    with pytest.raises(ConfigError, match="layout"):
        ContextCut({"tokens": 1}, layout="striped")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="A batch is a list"):
        ContextCut({"tokens": 1}).of([], 0, 2)


@dataclass
class Batch:
    tokens: Any
    labels: Any
    pixel_values: Any
    lengths: Any = None


@pytest.mark.parametrize("kind", [dict, Batch])
def test_parts_of_a_batch_joined_are_the_batch(kind: Any) -> None:
    starts = pad_lengths([3, 7, 1], 4)
    tokens = torch.arange(int(starts[-1]))[None]
    batch = kind(tokens=tokens, labels=tokens + 1, pixel_values=list("abcde"), lengths=torch.from_numpy(starts)[None])
    cut = ContextCut({"tokens": 1, "labels": 1}, items=["pixel_values"], starts="lengths")
    parts = [values(cut.of(batch, rank, 2)) for rank in range(2)]
    order = np.concatenate([positions_of_rank(starts, rank, 2) for rank in range(2)])
    joined = torch.cat([part["tokens"] for part in parts], dim=1)
    assert torch.equal(joined[:, np.argsort(order)], tokens)
    assert all(torch.equal(part["labels"], part["tokens"] + 1) for part in parts)
    assert [item for part in parts for item in part["pixel_values"]] == list("abcde")
    assert all(torch.equal(part["lengths"], values(batch)["lengths"]) for part in parts)
    assert torch.equal(values(batch)["tokens"], tokens)
    assert cut.of(batch, 0, 1) is batch


def values(batch: Any) -> dict[str, Any]:
    return batch if isinstance(batch, dict) else vars(batch)


def test_fields_go_to_the_stages_that_need_them() -> None:
    batch = {"pixel_values": 1, "tokens": 2, "labels": 3, "position_ids": 4}
    stages = [Delivery(Place(stage, 3), "megatron", None) for stage in range(3)]
    assert [sorted(stage.of(batch)) for stage in stages] == [
        ["labels", "pixel_values", "position_ids", "tokens"],
        ["position_ids"],
        ["labels", "position_ids", "tokens"],
    ]
    assert [stage.changes_nothing for stage in stages] == [True, False, False]
    assert len(batch) == 4
    last = Delivery(Place(1, 2), {"pixel_values": "first_stage"}, None).of(Batch(1, 2, 3))
    assert (last.tokens, last.pixel_values) == (1, None)
    assert MEGATRON["imgs"] == "first_stage"


@pytest.mark.parametrize("deliver", [{"tokens": "middle"}, "energon", ["tokens"]])
def test_unknown_roles_are_an_error(deliver: Any) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        Delivery(Place(), deliver, None)
