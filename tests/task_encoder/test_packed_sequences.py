from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import ConfigError, DatasetError, pack_sequences

SAMPLES: list[Any] = [
    {"input_ids": [11, 12, 13], "labels": [-100, 12, 13]},
    SimpleNamespace(input_ids=np.array([21, 22]), labels=np.array([21, 22])),
    {"input_ids": torch.tensor([31, 32, 33, 34]), "labels": torch.tensor([31, 32, 33, 34])},
]


def rows_of(sample: Any) -> torch.Tensor:
    ids = sample["input_ids"] if isinstance(sample, dict) else sample.input_ids
    return torch.as_tensor(ids).repeat(3, 1) * torch.tensor([[1], [2], [3]])


def test_samples_follow_each_other_and_no_label_crosses_a_boundary() -> None:
    pack = pack_sequences(SAMPLES)
    assert pack.fields["input_ids"].tolist() == [[11, 12, 13, 21, 22, 31, 32, 33, 34]]
    assert pack.fields["labels"].tolist() == [[-100, 12, 13, -100, 22, -100, 32, 33, 34]]
    assert pack.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert pack.cu_seqlens.dtype == torch.int32
    assert pack.cu_seqlens.tolist() == [0, 3, 5, 9]
    assert (pack.max_seqlen, pack.num_samples, pack.lengths) == (4, 3, [3, 2, 4])
    assert SAMPLES[2]["labels"].tolist() == [31, 32, 33, 34], "the samples are as before"
    model = pack.for_model()
    assert sorted(model) == [
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "input_ids",
        "labels",
        "max_length_k",
        "max_length_q",
        "position_ids",
        "use_cache",
    ]
    assert (model["cu_seq_lens_q"], model["max_length_k"]) == (pack.cu_seqlens, 4)


def test_padding_is_a_segment_of_its_own() -> None:
    pack = pack_sequences(SAMPLES, row_length=12, padding={"input_ids": 5})
    assert pack.fields["input_ids"][0, 9:].tolist() == [5, 5, 5]
    assert pack.fields["labels"][0, 9:].tolist() == [-100] * 3
    assert pack.position_ids[0, 9:].tolist() == [0, 1, 2]
    assert (pack.cu_seqlens.tolist(), pack.num_samples, pack.lengths) == ([0, 3, 5, 9, 12], 3, [3, 2, 4])
    assert pack_sequences(SAMPLES, row_length=9).cu_seqlens.tolist() == [0, 3, 5, 9]


def test_each_sample_is_padded_to_a_multiple() -> None:
    samples = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7], "labels": [4, 5, 6, 7]}]
    packed = pack_sequences(samples, multiple=4, row_length=12, padding={"input_ids": 9})
    assert packed.fields["input_ids"].tolist() == [[1, 2, 3, 9, 4, 5, 6, 7, 9, 9, 9, 9]]
    assert packed.fields["labels"].tolist() == [[-100, 2, 3, -100, -100, 5, 6, 7, -100, -100, -100, -100]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert packed.cu_seqlens.tolist() == [0, 4, 8, 12]
    assert packed.lengths == [3, 4]
    with pytest.raises(ConfigError, match="multiple=0 is invalid"):
        pack_sequences(samples, multiple=0)


@pytest.mark.parametrize("row_length", [None, 11])
def test_multimodal_positions_come_after_those_of_the_text(row_length: int | None) -> None:
    pack = pack_sequences(SAMPLES, position_ids=rows_of, row_length=row_length)
    assert pack.position_ids.shape == (4, 1, row_length or 9)
    assert pack.position_ids[0, 0, :9].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert pack.position_ids[3, 0, :9].tolist() == [33, 36, 39, 63, 66, 93, 96, 99, 102]
    own = pack_sequences(SAMPLES, position_ids=lambda sample: rows_of(sample)[1])
    assert own.position_ids.tolist() == [[22, 24, 26, 42, 44, 62, 64, 66, 68]]


@pytest.mark.sweep  # importing transformers takes longer than all other tests here
def test_transformers_sees_the_same_boundaries() -> None:
    """From position ids, and under the names of its FlashAttentionKwargs."""
    from transformers.masking_utils import find_packed_sequence_indices
    from transformers.modeling_flash_attention_utils import FlashAttentionKwargs

    pack = pack_sequences(SAMPLES, row_length=12)
    segments = find_packed_sequence_indices(pack.position_ids)
    assert segments.tolist() == [[0] * 3 + [1] * 2 + [2] * 4 + [3] * 3]
    assert set(pack.for_model()) - {"input_ids", "labels", "position_ids", "use_cache"} <= set(
        FlashAttentionKwargs.__annotations__
    )


def test_what_cannot_be_packed_says_why() -> None:
    with pytest.raises(ConfigError, match="no samples"):
        pack_sequences([])
    with pytest.raises(ConfigError, match="1 tokens more than row_length"):
        pack_sequences(SAMPLES, row_length=8)
    with pytest.raises(DatasetError, match="Sample 0 of a pack has no 'labels'"):
        pack_sequences([{"input_ids": [1]}])
    with pytest.raises(DatasetError, match="has 1 input_ids and 2 labels"):
        pack_sequences([{"input_ids": [1], "labels": [1, 2]}])
    with pytest.raises(DatasetError, match="3 tokens and 2 positions"):
        pack_sequences(SAMPLES, position_ids=lambda sample: torch.arange(2))
