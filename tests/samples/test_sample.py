from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from energon_dali.errors import ConfigError
from energon_dali.samples import kinds
from energon_dali.samples.base import Batch, CrudeSample, Sample, SourceInfo, edataclass
from energon_dali.samples.kinds import CaptioningSample, Clips, TextSample, sample_kind
from energon_dali.samples.media_metadata import ImageMetadata

SIZE: dict[str, Any] = {"width": 1, "height": 1, "format": "PNG", "mode": "L"}


def _pickled(protocol: int, value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


def source(index: int) -> SourceInfo:
    return SourceInfo(dataset_path="d", index=index, shard_name="s", file_names=("f",))


def text(key: str = "a", body: str = "t") -> TextSample:
    return TextSample(
        __key__=key, __restore_key__=("Webdataset", 1), __subflavors__={"q": 1}, __sources__=(source(1),), text=body
    )


def caption() -> CaptioningSample:
    return CaptioningSample(
        __key__="b", __restore_key__=(), __sources__=(source(2),), image=torch.zeros(3, 2, 2), caption="c"
    )


@edataclass
class Joined(Sample):
    text: str
    caption: str
    image: torch.Tensor


@edataclass
class Longer(TextSample):
    length: int


def test_derive_from_takes_the_base_fields() -> None:
    derived = CaptioningSample.derive_from(text(), image=torch.ones(1), caption="new")
    assert (derived.__key__, derived.__restore_key__, derived.__subflavors__) == ("a", ("Webdataset", 1), {"q": 1})
    assert derived.__sources__ == (source(1),)
    assert TextSample.derive_from(text(), __key__="other", text="x").__key__ == "other"


def test_wrong_fields_are_named() -> None:
    with pytest.raises(ConfigError, match=r"missing fields \['image'\], unknown fields \['picture'\]"):
        CaptioningSample.derive_from(text(), picture=1, caption="c")


def test_extend_keeps_all_fields() -> None:
    assert Longer.extend(text(body="hello"), length=5) == Longer.derive_from(text(), text="hello", length=5)
    assert TextSample.extend(text(), text="new").text == "new"
    with pytest.raises(ConfigError, match=r"TextSample.extend was given a CaptioningSample"):
        TextSample.extend(caption(), text="x")


def test_joining_puts_fields_and_sources_together() -> None:
    joined = Joined.from_joined(text(), caption(), None)
    assert (joined.__key__, joined.text, joined.caption) == ("a", "t", "c")
    assert joined.__sources__ == (source(1), source(2))
    assert joined.__subflavors__ == {"q": 1}
    assert TextSample.from_joined(text(), text("b", "later")).text == "later"
    with pytest.raises(ConfigError, match="primary"):
        Joined.from_joined(None, caption())
    with pytest.raises(ConfigError, match=r"missing fields \['caption', 'image'\]"):
        Joined.from_joined(text(), None)


@dataclass(kw_only=True)
class PlainText:
    """The same fields as TextSample, in a dataclass of Python alone."""

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None
    text: str


WAYS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda sample: sample,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": functools.partial(_pickled, protocol) for protocol in range(6)},
    "replace": lambda sample: dataclasses.replace(sample, text="other"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_with_further_attributes_is_treated_as_any_dataclass(way: str) -> None:
    """`dataclasses.replace` makes a new object of the fields, and leaves the further attributes out."""
    fields: dict[str, Any] = {"__key__": "a", "__restore_key__": ("Webdataset", 1), "text": "t"}
    plain: Any = PlainText(**fields)
    sample: Any = TextSample(**fields)
    plain.length = sample.length = 3
    got, wanted = WAYS[way](sample), WAYS[way](plain)
    assert type(got) is TextSample
    assert vars(got) == vars(wanted)
    assert hasattr(got, "length") == (way != "replace")


@pytest.mark.parametrize("value", [Batch(__key__=["a"], __restore_key__=()), Clips(None, None), ImageMetadata(**SIZE)])
def test_batches_and_other_values_take_further_attributes(value: Any) -> None:
    value.length = 3
    assert copy.copy(value).length == pickle.loads(pickle.dumps(value)).length == vars(value)["length"] == 3


def test_samples_travel() -> None:
    sample = text()
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert pickle.loads(pickle.dumps(CrudeSample({"__key__": "k", "jpg": b""}))) == {"__key__": "k", "jpg": b""}


def test_subflavors_and_sources_are_optional() -> None:
    sample = TextSample(__key__="k", __restore_key__=(), text="")
    assert sample.__subflavors__ is None
    assert sample.__sources__ is None


def test_every_kind_is_there() -> None:
    expected = {
        "TextSample": ["text"],
        "ImageSample": ["image"],
        "CaptioningSample": ["image", "caption"],
        "ImageClassificationSample": ["image", "label", "label_name"],
        "VQASample": ["image", "context", "answers", "answer_weights"],
        "MultiChoiceVQASample": ["image", "context", "choices", "correct_choice_idx"],
        "VidQASample": ["video", "context", "answers", "answer_weights"],
        "InterleavedSample": ["sequence"],
        "SimilarityInterleavedSample": [
            "images",
            "texts",
            "audio",
            "video",
            "similarity_matrix",
            "matched_text_indices",
        ],
        "OCRSample": [
            "image",
            "text",
            "block_boxes",
            "block_classes",
            "block_text",
            "lines_boxes",
            "lines_text",
            "words_boxes",
            "words_text",
            "chars_boxes",
            "chars_text",
        ],
        "VQAOCRSample": ["image", "context", "text", "answers", "answer_weights", "words_boxes", "words_text"],
    }
    for name, names in expected.items():
        kind = sample_kind(name)
        assert kind is not None
        assert list(kind.__dataclass_fields__)[4:] == names
        assert issubclass(kind, Sample)
    assert {*expected, "CrudeSample", "Sample"} == {name for name in vars(kinds) if sample_kind(name) is not None}


def test_pinning_needs_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = caption()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sample.pin_memory() is sample
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    pinned = sample.pin_memory()
    assert pinned is not sample
    assert pinned.image.eq(1).all()
    assert sample.image.eq(0).all()
    on_device = CaptioningSample.derive_from(sample, image=torch.zeros(2, device="meta"), caption="c")
    assert on_device.pin_memory() is on_device
