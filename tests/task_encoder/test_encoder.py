from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from energon_dali.decode import SampleDecoder
from energon_dali.errors import ConfigError
from energon_dali.samples import Batch, CaptioningSample, edataclass
from energon_dali.samples.batching import batch_alike, batch_list, batch_stack
from energon_dali.task_encoder.default import AugmentTaskEncoder, DefaultTaskEncoder
from energon_dali.task_encoder.encoder import TaskEncoder, batch_function, overridden
from energon_dali.task_encoder.stateless import stateless


@dataclass
class CaptioningRawBatch:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@dataclass
class CaptioningBatch:
    __key__: list[str]
    images: torch.Tensor
    text_tokens: torch.Tensor
    text_attn_mask: torch.Tensor


class CaptioningTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    """The form that users of older Energon wrote."""

    def __init__(self, max_length: int = 8) -> None:
        super().__init__(batch_type=CaptioningRawBatch)
        self.max_length = max_length

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = sample.image[:, :4, :4]
        return sample

    def batch(self, samples: list[CaptioningSample]) -> CaptioningRawBatch:
        return self._batch(
            samples, result_type=CaptioningRawBatch, actions={"image": batch_stack, "caption": batch_list}
        )

    def encode_batch(self, batch_data: CaptioningRawBatch) -> CaptioningBatch:
        tokens = torch.tensor([[ord(c) for c in caption.ljust(self.max_length)] for caption in batch_data.caption])
        return CaptioningBatch(batch_data.__key__, batch_data.image, tokens, tokens != ord(" "))


def sample(number: int) -> CaptioningSample:
    return CaptioningSample(
        __key__=f"k{number}", __restore_key__=(number,), image=torch.full((3, 6, 5), number), caption="x" * number
    )


def test_the_captioning_example_runs() -> None:
    encoder = CaptioningTaskEncoder()
    encoded = [encoder.encode_sample(sample(number)) for number in (1, 2)]
    batch = encoder.encode_batch(encoder.batch(encoded))
    assert batch.__key__ == ["k1", "k2"]
    assert batch.images.shape == (2, 3, 4, 4)
    assert batch.text_tokens.shape == (2, 8)
    assert batch.text_attn_mask.sum(1).tolist() == [1, 2]
    assert pickle.loads(pickle.dumps(encoder)).max_length == 8


class Pair(NamedTuple):
    caption: list[str]
    image: torch.Tensor


@edataclass
class Captions(Batch):
    caption: list[str]


def encoder() -> TaskEncoder[Any, Any, Any, Any]:
    return TaskEncoder()


def test_by_default_a_batch_has_the_samples_type() -> None:
    batch = encoder().batch([sample(1), sample(2)])
    assert isinstance(batch, CaptioningSample)
    assert batch.__key__ == ["k1", "k2"]
    assert batch.__restore_key__ == ((1,), (2,))
    assert batch.image.shape == (2, 3, 6, 5)
    assert batch.caption == ["x", "xx"]


def test_results_may_be_batches_dicts_and_named_tuples() -> None:
    samples = [sample(1), sample(2)]
    assert encoder()._batch(samples, Captions).caption == ["x", "xx"]
    assert encoder()._batch(samples, Pair).image.shape == (2, 3, 6, 5)
    as_dict = encoder()._batch(samples, dict, {"caption": len})
    assert (as_dict["caption"], as_dict["__key__"]) == (2, ["k1", "k2"])
    listed = encoder()._batch(samples, dict, {"caption": len}, batch_list)
    assert isinstance(listed["image"], list)
    from_dicts = encoder()._batch([{"caption": "a", "image": torch.ones(1)}], Pair, {"image": batch_stack})
    assert from_dicts.caption == ["a"]


def test_fields_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"actions for \['picture'\]"):
        encoder()._batch([sample(1)], CaptioningRawBatch, {"picture": batch_stack, "image": batch_stack})
    with pytest.raises(ConfigError, match=r"actions for \['image'\]"):
        encoder()._batch([sample(1)], Captions, {"image": batch_stack})
    with pytest.raises(ConfigError, match=r"CaptioningBatch needs the fields \['images', 'text_attn_mask', "):
        encoder()._batch([sample(1)], CaptioningBatch)
    with pytest.raises(ConfigError, match="int has no fields"):
        encoder()._batch([sample(1)], int)
    with pytest.raises(ConfigError, match="A str has no fields to batch"):
        encoder()._batch(["x"], dict)
    with pytest.raises(ConfigError, match=r"A sample to batch is None: let encode_sample, .* return one"):
        encoder()._batch([None], dict)
    with pytest.raises(ConfigError, match="at least one sample"):
        encoder()._batch([], dict)


def test_only_what_is_overridden_counts() -> None:
    class Own(TaskEncoder[Any, Any, Any, Any]):
        def preencode_sample(self, sample: Any) -> Any:
            return sample

    own = Own()
    assert overridden(own, "preencode_sample")
    assert not overridden(own, "encode_sample")
    own.encode_batch = lambda batch: batch  # type: ignore[method-assign]
    assert overridden(own, "encode_batch")
    with pytest.raises(ConfigError, match="'encode_smaple' is not a hook of a task encoder"):
        overridden(own, "encode_smaple")


def test_hooks_that_are_not_overridden_pass_through_or_say_so() -> None:
    one = sample(1)
    for name in ("preencode_sample", "encode_sample", "postencode_sample", "encode_batch"):
        assert getattr(encoder(), name)(one) is one
    for name in ("select_samples_to_pack", "pack_selected_samples", "batch_group_criterion"):
        with pytest.raises(ConfigError, match=f"does not override it. Override {name}"):
            getattr(encoder(), name)([])


def test_the_decoder_is_a_class_attribute_that_can_be_replaced() -> None:
    assert isinstance(TaskEncoder.decoder, SampleDecoder)

    class Raw(TaskEncoder[Any, Any, Any, Any]):
        decoder = None

    assert Raw().decoder is None
    assert encoder().cookers == ()
    assert encoder().__default_failure_tolerance__ == 100


def test_a_hook_can_be_stateless() -> None:
    class Own(TaskEncoder[Any, Any, Any, Any]):
        @stateless
        def encode_sample(self, sample: Any) -> Any:
            return sample

    assert overridden(Own(), "encode_sample")
    assert Own().encode_sample.__stateless__  # type: ignore[attr-defined]


class NoHook(TaskEncoder):  # type: ignore[type-arg]
    pass


class OwnDefault(TaskEncoder):  # type: ignore[type-arg]
    def _batch(self, samples: list[Any], result_type: type[Any], *_: Any) -> Any:
        return result_type, len(samples)


def test_a_batch_hook_that_nobody_overrides_is_left_out() -> None:
    samples = [sample(1), sample(2)]
    left_out = batch_function(NoHook())
    assert left_out is batch_alike
    assert batch_function(AugmentTaskEncoder(NoHook())) is batch_alike
    made, hooked = left_out(samples), NoHook().batch(samples)
    assert type(made) is type(hooked) is CaptioningSample
    assert (made.__key__, made.caption) == (hooked.__key__, hooked.caption) == (["k1", "k2"], ["x", "xx"])
    assert torch.equal(made.image, hooked.image)
    for encoder in (OwnDefault(), AugmentTaskEncoder(OwnDefault()), CaptioningTaskEncoder(), DefaultTaskEncoder()):
        assert batch_function(encoder) == encoder.batch
    assert batch_function(OwnDefault())(samples) == (CaptioningSample, 2)
