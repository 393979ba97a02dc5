"""What front ends say about arguments of a wrong type or size."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2AudioProcessor, WhisperFeatureExtractor

from energon_dali import AudioFrontEnd, FrontEnd, MultimodalRope, VideoFrontEnd
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.errors import ConfigError

IMAGE = FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor"})
NUMBERED = FrontEnd.from_processor({"image_processor_type": "MiniCPMV4_6ImageProcessor"})
VIDEO = VideoFrontEnd.from_processor({"video_processor_type": "Qwen2VLVideoProcessor"})
AUDIO = AudioFrontEnd.from_processor(
    {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "Qwen2AudioProcessor"}
)


@pytest.mark.parametrize("front_end", [IMAGE, NUMBERED, VIDEO, AUDIO], ids=lambda one: one.family)
@pytest.mark.parametrize(
    ("text", "layouts", "message"),
    [
        ("a", 3, r"layouts=3 is invalid: give a list with the \w+Layout of each placeholder"),
        ("a", [None], r"layouts=\[None\] is invalid"),
        ([5, 6], [], r"text=\[5, 6\] is invalid: give a str"),
    ],
)
def test_expand_text_takes_a_text_and_layouts(front_end: Any, text: Any, layouts: Any, message: str) -> None:
    assert isinstance(front_end, ProcessorFamily)
    with pytest.raises(ConfigError, match=message):
        front_end.expand_text(text, layouts)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [(0, 9), (9, 0), (-3, 9), (9, -3), (9.5, 9), ("9", 9), (True, 9)])
def test_an_image_has_pixels(size: Any) -> None:
    width, height = size
    for front_end in (IMAGE, NUMBERED, VIDEO):
        with pytest.raises(
            ConfigError, match=f"layout\\(width={width!r}, height={height!r}\\) is not the size of an image"
        ):
            front_end.layout(width, height)


def test_a_family_may_compute_its_layout_from_that_of_its_base() -> None:
    assert IMAGE.layout(height=28, width=np.int64(56)) == IMAGE.layout(56, 28)
    assert inspect.signature(IMAGE.layout) == inspect.signature(FrontEnd.layout.__get__(IMAGE))


def test_a_feature_extractor_of_audio_belongs_to_the_audio_front_end(tmp_path: Path) -> None:
    extractor = WhisperFeatureExtractor()  # type: ignore[no-untyped-call]
    extractor.save_pretrained(tmp_path)
    flat = {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor"}
    processor = Qwen2AudioProcessor.__new__(Qwen2AudioProcessor)
    processor.feature_extractor = extractor
    for given in (extractor, tmp_path, extractor.to_dict(), flat, {"feature_extractor": flat}, processor):
        for kind in (FrontEnd, VideoFrontEnd):
            with pytest.raises(
                ConfigError, match=r"for WhisperFeatureExtractor, .* give it to AudioFrontEnd\.from_proc"
            ):
                kind.from_processor(given)
    with pytest.raises(ConfigError, match="no front end for OwnImageProcessor"):
        FrontEnd.from_processor({**flat, "image_processor_type": "OwnImageProcessor"})


@pytest.mark.parametrize("name", ["image_token_id", "placeholder_id", "video_token_id"])
@pytest.mark.parametrize("value", ["<image>", 7.0, True])
def test_the_id_of_a_token_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"Qwen2VLVideo\\({name}={value!r}\\) is invalid: it must be the id of a token"
    ):
        VIDEO.with_fields(**{name: value})
    assert getattr(VIDEO.with_fields(**{name: np.int64(7)}), name) == 7


def test_the_markers_of_videos_are_whole_numbers() -> None:
    with pytest.raises(ConfigError, match="video_end_id='x' is invalid: it must be the id of a token"):
        MultimodalRope(image_token_id=1, video_token_id=2, video_start_id=3, video_end_id="x")  # type: ignore[arg-type]
