"""Configurations as published models have them, with all their keys and nulls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_dali import ConfigError, FrontEnd, VideoFrontEnd, batch_vision
from energon_dali.decode.front_ends.resampling import Pixels
from tests.decode.front_ends import vision_cases
from tests.decode.front_ends.comparison import difference
from tests.decode.front_ends.published import NESTED, Published, make_processor, needs_torchvision, published, type_name

SIZES = ((61, 40), (36, 75))
_DECISIVE = (
    "size",
    "min_pixels",
    "patch_size",
    "max_image_size",
    "image_mean",
    "resample",
    "do_normalize",
    "crop_size",
)
_ALL = published()
_ACCEPTED = [entry for entry in _ALL if entry.outcome == "accepted" and entry.image_values is not None]
_WITHOUT_PIL = [entry for entry in _ACCEPTED if needs_torchvision(type_name(entry.image_values or {}))]
_IMAGES = [entry for entry in _ACCEPTED if entry not in _WITHOUT_PIL]
_VIDEOS = [entry for entry in _ALL if entry.outcome == "accepted" and entry.video_values is not None]


def _image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_there_are_many_of_many_families() -> None:
    assert len([entry for entry in _ALL if entry.outcome == "accepted"]) >= 60
    assert len({type_name(entry.image_values) for entry in _IMAGES if entry.image_values}) >= 17
    assert all(entry.source and entry.files for entry in _ALL)


@pytest.mark.parametrize("entry", _IMAGES, ids=lambda entry: entry.model)
def test_a_folder_is_read_as_its_processor(entry: Published, tmp_path: Path) -> None:
    entry.save(tmp_path)
    of_folder = FrontEnd.from_processor(tmp_path)
    processor = make_processor({**(entry.image_values or {}), **entry.passed_on})
    of_object = FrontEnd.from_processor(processor)
    assert (of_folder.values, of_folder.filter) == (of_object.values, of_object.filter)
    for size in (*SIZES, (1024, 768), (400, 1900)):
        assert of_folder.layout(*size).views == of_object.layout(*size).views


@pytest.mark.parametrize("entry", _WITHOUT_PIL, ids=lambda entry: entry.model)
def test_a_folder_without_a_pil_backend_follows_torchvisions(entry: Published, tmp_path: Path) -> None:
    entry.save(tmp_path)
    front_end = FrontEnd.from_processor(tmp_path)
    assert front_end.resampling == "torch"
    assert front_end.values.arithmetic in ("torch", "bfloat16")
    layout = front_end.layout(1024, 768)
    assert layout.num_tiles > 0
    of_vision = type_name(entry.image_values or {}) in {kind for _, kind in vision_cases.TORCHVISION.values()}
    assert (layout.num_tokens == 0) == of_vision


def _distinct() -> Iterator[Any]:
    """Yields the first of the entries that make the same of an image; those of large tiles are left to the sweep."""
    seen = set()
    for entry in _IMAGES:
        values = entry.image_values or {}
        key = (type_name(values), json.dumps([values.get(name) for name in _DECISIVE]), *entry.passed_on)
        if key not in seen:
            seen.add(key)
            large = "max_image_size" in values
            yield pytest.param(entry, id=entry.model, marks=[pytest.mark.sweep] if large else [])


@pytest.mark.parametrize("entry", list(_distinct()))
def test_an_image_becomes_what_the_processor_makes_of_it(entry: Published, tmp_path: Path) -> None:
    entry.save(tmp_path)
    front_end = FrontEnd.from_processor(tmp_path)
    values = entry.image_values
    assert values is not None
    image = _image(*SIZES[0])
    images: Any = [[image]] if type_name(values) in NESTED else [image]
    theirs = dict(make_processor(values)(images, return_tensors="pt", **entry.passed_on))
    ours = batch_vision([front_end.render(Pixels(image=image), front_end.layout(*image.size))])
    assert difference(ours, theirs) is None


@pytest.mark.parametrize("model", ["Qwen2.5-Omni", "Qwen3-Omni-30B-A3B", "fine-tuned Qwen2.5-VL-7B-Instruct"])
def test_one_file_for_images_and_videos(model: str, tmp_path: Path) -> None:
    (entry,) = (entry for entry in _ALL if entry.model == model)
    entry.save(tmp_path)
    front_end = VideoFrontEnd.from_processor(tmp_path)
    assert front_end.family == "qwen2_vl_video"
    assert front_end.layout(90, 60, 40, 24.0).grid[0] == 20


@pytest.mark.parametrize("entry", _VIDEOS, ids=lambda entry: entry.model)
def test_a_video_configuration_is_accepted(entry: Published, tmp_path: Path) -> None:
    entry.save(tmp_path)
    layout = VideoFrontEnd.from_processor(tmp_path).layout(90, 60, 40, 24.0)
    assert layout == VideoFrontEnd.from_processor(entry.video_values).layout(90, 60, 40, 24.0)
    assert layout.num_tokens > 0


@pytest.mark.parametrize("entry", [entry for entry in _ALL if entry.outcome != "accepted"], ids=lambda e: e.model)
def test_what_is_not_accepted_says_why(entry: Published, tmp_path: Path) -> None:
    entry.save(tmp_path)
    start = "There is no front end for .*" if entry.outcome == "not covered" else "No front end can be made .*"
    make = VideoFrontEnd.from_processor if entry.image_values is None else FrontEnd.from_processor
    with pytest.raises(ConfigError, match=start + re.escape(entry.words)):
        make(tmp_path)
