from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

from energon_dali import get_train_dataset
from energon_dali.errors import ConfigError
from energon_dali.samples.base import Batch, CrudeSample, Sample, edataclass
from energon_dali.samples.batching import generic_batch
from energon_dali.samples.kinds import CaptioningSample, TextSample
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.task_encoder.encoder import overridden
from tests.datasets.oracle import config, take
from tests.loader.dataset_folder import captioning_dataset

T = TypeVar("T")
HOOKS = ("encode_sample", "batch", "encode_batch")


@edataclass
class Texts(Batch):
    text: list[str]


@edataclass
class Counted(Texts):
    count: int

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **overrides: Any) -> Counted:
        return super().from_samples(samples, count=len(samples), **overrides)


@dataclass
class Box(Generic[T]):
    text: T


@edataclass
class Words(Sample):
    text: str
    words: int = 0


class Pair(NamedTuple):
    text: Any
    count: int = 3


def sample() -> TextSample:
    return TextSample(__key__="k", __restore_key__=(), text="t")


def test_without_types_nothing_is_done() -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    assert not any(overridden(encoder, hook) for hook in HOOKS)
    one = sample()
    assert encoder.encode_sample(one) is one
    assert encoder.encode_batch(one) is one
    assert isinstance(encoder.batch([one, one]), TextSample)


def test_types_are_made_field_by_field() -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(
        encoded_sample_type=Words, raw_batch_type=Texts, batch_type=dict
    )
    assert all(overridden(encoder, hook) for hook in HOOKS)
    encoded = encoder.encode_sample(sample())
    assert encoded == Words(__key__="k", __restore_key__=(), text="t")
    batch = encoder.encode_batch(encoder.batch([encoded, encoded]))
    assert batch["text"] == ["t", "t"]
    assert batch["__key__"] == ["k", "k"]


def test_named_tuples_and_dicts() -> None:
    to_pair: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(encoded_sample_type=Pair, batch_type=Pair)
    assert to_pair.encode_sample(sample()) == Pair("t")
    assert to_pair.encode_sample(CrudeSample({"text": "c", "other": 1})) == Pair("c")
    assert to_pair.encode_batch(Pair(["x"])) == Pair(["x"])
    to_dict: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(encoded_sample_type=dict)
    assert to_dict.encode_sample(Pair("p")) == {"text": "p", "count": 3}


def test_what_cannot_be_made_is_said() -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(encoded_sample_type=Pair)
    with pytest.raises(ConfigError, match=r"Pair needs the fields \['text'\]"):
        encoder.encode_sample({"other": 1})
    with pytest.raises(ConfigError, match="A str has no fields"):
        encoder.encode_sample("text")
    with pytest.raises(ConfigError, match="int has no fields"):
        DefaultTaskEncoder(encoded_sample_type=int).encode_sample({"a": 1})
    with pytest.raises(ConfigError, match=r"Words cannot be created: missing fields"):
        DefaultTaskEncoder(encoded_sample_type=Words).encode_sample({"text": "x"})


def test_a_subclass_counts_where_it_overrides_and_need_not_call_init() -> None:
    class Own(DefaultTaskEncoder[Any, Any, Any, Any]):
        def __init__(self) -> None:
            self.calls = 0

        def encode_sample(self, sample: Any) -> Any:
            return super().encode_sample(sample)

    own = Own()
    assert [hook for hook in HOOKS if overridden(own, hook)] == ["encode_sample"]
    one = sample()
    assert own.encode_sample(one) is one
    assert not overridden(own, "preencode_sample")
    own = copy.copy(own)
    own.decoder = None
    assert own.encode_batch(one) is one


@pytest.mark.parametrize("name", ["encoded_sample_type", "raw_batch_type", "batch_type"])
@pytest.mark.parametrize("target", [int, "TextSample", {}, list[int]])
def test_a_type_without_fields_is_refused_at_once(name: str, target: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}: .* has no fields. Give a dataclass"):
        DefaultTaskEncoder(**{name: target})


def test_a_generic_alias_is_its_class() -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(
        encoded_sample_type=Box[str], raw_batch_type=dict[str, Any], batch_type=Box[list[str]]
    )
    assert all(overridden(encoder, hook) for hook in HOOKS)
    encoded = encoder.encode_sample(sample())
    assert encoded == Box("t")
    batch = encoder.batch([encoded, encoded])
    assert batch == {"text": ["t", "t"]}
    assert encoder.encode_batch(batch) == Box(["t", "t"])


def test_a_type_with_its_own_from_samples_makes_its_batches() -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(raw_batch_type=Counted)
    batch = encoder.batch([sample(), sample()])
    assert type(batch) is Counted
    assert (batch.count, batch.text, batch.__key__) == (2, ["t", "t"], ["k", "k"])


def test_a_subclass_changes_how_fields_are_batched() -> None:
    class Own(DefaultTaskEncoder[Any, Any, Any, Any]):
        def _batch(
            self, samples: list[Any], result_type: Any, actions: Any = None, default_action: Any = generic_batch
        ) -> Any:
            return result_type, super()._batch(samples, result_type, {"text": "+".join}, default_action).text

    assert Own(raw_batch_type=Texts).batch([sample(), sample()]) == (Texts, "t+t")
    assert Own().batch([sample(), sample()]) == (TextSample, "t+t")


class Early(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def preencode_sample(self, sample: Any) -> Any:
        return sample


class Both(Early):
    def encode_sample(self, sample: Any) -> Any:
        return super().encode_sample(sample)


def first_batch(folder: Path, encoder: Any) -> Any:
    (batch,) = take(get_train_dataset(folder, worker_config=config(), batch_size=2, task_encoder=encoder), 1)
    return batch


def test_preencode_sample_takes_the_place_of_a_conversion(tmp_path: Path) -> None:
    early = Early(encoded_sample_type=dict, raw_batch_type=CaptioningSample)
    assert [hook for hook in ("preencode_sample", *HOOKS) if overridden(early, hook)] == ["preencode_sample", "batch"]
    folder = captioning_dataset(tmp_path / "data", count=6)
    assert type(first_batch(folder, Early(encoded_sample_type=dict))) is CaptioningSample
    plain: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(encoded_sample_type=dict)
    plain.decoder = None
    assert type(first_batch(folder, plain)) is dict
    with pytest.raises(ConfigError, match="overrides both preencode_sample and encode_sample"):
        first_batch(folder, Both())
