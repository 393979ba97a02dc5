"""A sample of `make test-front-ends`: every family against its processor, with a fixed seed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from energon_dali import ConfigError, FrontEnd
from tests.decode.front_ends.case import Case
from tests.decode.front_ends.cases import CASES as ALL_CASES
from tests.decode.front_ends.comparison import compare
from tests.decode.front_ends.images import draw_images
from tests.decode.front_ends.mixed_cases import processor_class
from tests.decode.front_ends.token_budget_cases import ALWAYS_NORMALIZED
from tests.decode.front_ends.vision_cases import ALWAYS_RESCALED

CASES = [case for case in ALL_CASES if not case.torchvision]
"""Those that need torchvision, which is not installed for `make test`, are in `test_torchvision_cases`."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_processor(case: Case) -> None:
    draw = random.Random(15)
    first = case.make(draw) if case.slow else case.published()
    for processor, images in (
        (first, draw_images(9, 1, largest=240, largest_ratio=min(100, case.largest_ratio))),
        (case.make(draw), draw_images(5, 2, largest=240, extremes=False)),
        (case.make(draw), draw_images(5, 3, largest=240, extremes=False)),
    ):
        front_end = FrontEnd.from_processor(processor, **case.fields(processor))
        result = compare(
            processor,
            images,
            front_end=front_end,
            call=case.call,
            tokens=case.tokens,
            texts=case.texts,
            batch_size=min(3, case.most_in_a_batch),
        )
        assert result.differences == []
        assert set(result.routes) == {"pil", "dali-cpu"}


def _with(processor: Any, **values: Any) -> Any:
    """Returns a processor with other values of its image processor."""
    inner = getattr(processor, "image_processor", None)
    if inner is None:
        return type(processor).from_dict({**processor.to_dict(), **values})
    processor.image_processor = type(inner).from_dict({**inner.to_dict(), **values})
    return processor


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_that_are_neither_rescaled_nor_normalised(case: Case) -> None:
    processor = _with(case.make(random.Random(15)), do_rescale=False, do_normalize=False, do_convert_rgb=True)
    if case.name in ALWAYS_RESCALED:
        with pytest.raises(ConfigError, match="do_rescale=False is not supported"):
            FrontEnd.from_processor(processor)
        return
    if case.name in ALWAYS_NORMALIZED:
        with pytest.raises(ConfigError, match="do_normalize=False is not supported"):
            FrontEnd.from_processor(processor)
        return
    result = compare(processor, draw_images(2, 4, largest=120, extremes=False), call=case.call)
    assert result.differences == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keys_that_a_processor_does_not_read_change_nothing(case: Case) -> None:
    crop_size, pad_size = {"height": 9, "width": 14}, {"height": 11, "width": 300}
    keys: dict[str, dict[str, Any]] = {
        "do_center_crop": {"do_center_crop": True, "crop_size": crop_size},
        "crop_size": {"crop_size": crop_size},
        "do_pad": {"do_pad": True, "pad_size": pad_size},
        "pad_size": {"pad_size": pad_size},
        "size": {"size": {"height": 9, "width": 8}},
        "default_to_square": {"default_to_square": True},
    }
    family = type(FrontEnd.from_processor(case.make(random.Random(15))))
    for key in sorted((family.unused_keys | {"default_to_square"}) & keys.keys()):
        processor = _with(case.make(random.Random(15)), **keys[key])
        result = compare(processor, draw_images(1, 6, largest=120, extremes=False), call=case.call)
        assert result.differences == [], key


def test_padding_to_the_size_that_images_have_changes_nothing() -> None:
    for name, module in (("BlipImageProcessor", "blip"), ("CLIPImageProcessor", "clip")):
        for pad_size in (None, {"height": 20, "width": 28}):
            processor = processor_class(module, name)(
                size={"height": 20, "width": 28}, do_center_crop=False, do_pad=True, pad_size=pad_size
            )
            assert compare(processor, draw_images(3, 7, largest=90, extremes=False), batch_size=3).differences == []


@pytest.mark.parametrize(
    ("name", "backend", "dtype"),
    [
        ("CLIPImageProcessor", "pil", "uint8"),
        ("CLIPImageProcessor", "torchvision", "uint8"),
        ("Qwen2VLImageProcessor", "pil", "float32"),
        ("Qwen2VLImageProcessor", "torchvision", "uint8"),
        ("Idefics3ImageProcessor", "pil", "uint8"),
        ("Idefics3ImageProcessor", "torchvision", "float32"),
        ("MllamaImageProcessor", "torchvision", "float32"),
    ],
)
def test_the_dtype_of_the_processors_backend(name: str, backend: str, dtype: str) -> None:
    values = {"image_processor_type": name, "do_rescale": False, "do_normalize": False}
    processor = SimpleNamespace(to_dict=lambda: values, backend=backend)
    assert FrontEnd.from_processor(processor).dtype == dtype
    assert FrontEnd.from_processor(processor, dtype="bfloat16").dtype == "bfloat16"
    values["do_rescale"] = True
    assert FrontEnd.from_processor(processor).dtype == "float32"
