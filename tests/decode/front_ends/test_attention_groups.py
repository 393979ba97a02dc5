"""What the vision encoders of the families attend to together, counted from layouts."""

from __future__ import annotations

from typing import Any

import pytest

from energon_dali import FrontEnd, VideoFrontEnd

IMAGES: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "qwen2_vl": ({"image_processor_type": "Qwen2VLImageProcessor"}, [(1, 3200)]),
    "internvl": (
        {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 448, "width": 448}},
        [(1, 1024)],
    ),
    "internvl in tiles": (
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 448, "width": 448},
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 12,
        },
        [(12, 1024), (1, 1024)],
    ),
    "mllama": (
        {"image_processor_type": "MllamaImageProcessor", "size": {"height": 560, "width": 560}, "max_image_tiles": 4},
        [(1, 4 * 1600)],
    ),
    "gemma3": ({"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}}, [(1, 4096)]),
    "pixtral": ({"image_processor_type": "PixtralImageProcessor"}, [(1, 44 * 57)]),
    "siglip2": ({"image_processor_type": "Siglip2ImageProcessor"}, [(1, 14 * 18)]),
    "idefics3": ({"image_processor_type": "Idefics3ImageProcessor"}, [(16, 26 * 26), (1, 26 * 26)]),
    "smolvlm": (
        {
            "image_processor_type": "SmolVLMImageProcessor",
            "max_image_size": {"longest_edge": 512},
            "size": {"longest_edge": 2048},
        },
        [(16, 32 * 32), (1, 32 * 32)],
    ),
    "llava_onevision": ({"image_processor_type": "LlavaOnevisionImageProcessor"}, [(1, 729), (6, 729)]),
    "clip": ({"image_processor_type": "CLIPImageProcessor"}, [(1, 256)]),
}
VIDEOS: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "qwen2_vl": ({"video_processor_type": "Qwen2VLVideoProcessor"}, [(16, 20 * 28)]),
    "llava_onevision": ({"video_processor_type": "LlavaOnevisionVideoProcessor"}, [(32, 729)]),
}


@pytest.mark.parametrize(("config", "groups"), IMAGES.values(), ids=IMAGES)
def test_images_are_groups_of_patches(config: dict[str, Any], groups: list[tuple[int, int]]) -> None:
    front_end = FrontEnd.from_processor(config)
    assert front_end.attention_groups(front_end.layout(900, 700)) == groups


@pytest.mark.parametrize(("config", "groups"), VIDEOS.values(), ids=VIDEOS)
def test_frames_of_videos_are_groups_of_their_own(config: dict[str, Any], groups: list[tuple[int, int]]) -> None:
    front_end = VideoFrontEnd.from_processor(config)
    assert front_end.attention_groups(front_end.layout(320, 240, 32, 8.0)) == groups


def test_the_features_of_merged_patches_are_a_quarter_of_them() -> None:
    front_end = FrontEnd.from_processor(IMAGES["qwen2_vl"][0])
    for size in ((64, 64), (1000, 300), (333, 777)):
        layout = front_end.layout(*size)
        assert sum(count * patches for count, patches in front_end.attention_groups(layout)) == 4 * layout.num_features
