"""Texts of videos, as processors write them, of families whose sweep needs torchvision."""

from __future__ import annotations

import pytest

from energon_dali import VideoFrontEnd
from energon_dali.decode.front_ends.smolvlm_video import number_in_words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((0, "zero"), (13, "thirteen"), (40, "forty"), (64, "sixty-four"), (100, "one hundred")),
        *((101, "one hundred and one"), (999, "nine hundred and ninety-nine"), (1001, "one thousand and one")),
        (1250, "one thousand, two hundred and fifty"),
    ],
)
def test_numbers_in_words(number: int, words: str) -> None:
    assert number_in_words(number) == words


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "image_seq_len": 2,
                "video_processor": {"video_processor_type": "SmolVLMVideoProcessor", "do_sample_frames": False},
            },
            "You are provided the following series of two frames from a 0:00:02 [H:MM:SS] video.\n\n"
            "Frame from 00:00:<fake_token_around_image><global-img><image><image><fake_token_around_image>\n"
            "Frame from 00:01:<fake_token_around_image><global-img><image><image><fake_token_around_image>\n\n",
        ),
        (
            {"video_processor": {"video_processor_type": "Gemma4VideoProcessor", "num_frames": 2, "patch_size": 64}},
            "00:00 <|image>" + "<|video|>" * 70 + "<image|> 00:01 <|image>" + "<|video|>" * 70 + "<image|>",
        ),
        (
            {
                "video_processor": {
                    "video_processor_type": "Kimi_K25VideoProcessor",
                    "do_sample_frames": False,
                    "temporal_patch_size": 1,
                }
            },
            "00:00:00.000<|media_begin|>video<|media_content|><|media_pad|><|media_pad|><|media_end|>"
            "00:00:01.000<|media_begin|>video<|media_content|><|media_pad|><|media_pad|><|media_end|>",
        ),
        (
            {
                "patch_size": 56,
                "video_processor": {"video_processor_type": "LlavaNextVideoVideoProcessor"},
            },
            "<video>" * 8,
        ),
    ],
    ids=["SmolVLM", "Gemma 4", "Kimi-K2.5", "LLaVA-NeXT-Video"],
)
def test_the_text_of_two_frames(config: dict[str, object], expected: str) -> None:
    front_end = VideoFrontEnd.from_processor(config)
    layout = front_end.layout(40, 28, 2, 1.0)
    assert front_end.video_text(layout) == expected
    assert front_end.video_text_tokens(layout) >= layout.num_tokens
