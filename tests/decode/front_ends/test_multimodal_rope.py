"""Multimodal rotary positions equal the model's own, for random interleavings of text, images and videos."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import ConfigError, MultimodalRope

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}
VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16}
IDS = {"image_token_id": 30, "video_token_id": 31, "video_start_token_id": 32, "video_end_token_id": 33}
FAMILIES = {
    "qwen2_vl": ("Qwen2VL", {"embed_dim": 16, "hidden_size": 16, "depth": 1, "num_heads": 2}),
    "qwen2_5_vl": ("Qwen2_5_VL", {**VISION, "tokens_per_second": 3}),
    "qwen3_vl": ("Qwen3VL", {**VISION, "deepstack_visual_indexes": [0]}),
    "glm4v": ("Glm4v", VISION),
}


def make_model(family: str, merge: int) -> Any:
    """Returns a tiny model with random weights."""
    name, vision = FAMILIES[family]
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config_class = getattr(module, f"{name}Config")
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = config_class(
        text_config={**TINY, "rope_parameters": rope, "rope_scaling": None},
        vision_config={**vision, "spatial_merge_size": merge},
        **IDS,
    )
    return getattr(module, f"{name}Model")(config)


def make_sample(rng: random.Random, family: str, merge: int) -> dict[str, Any]:
    """Returns the token ids and grids of one sample: text, images and videos in random order, with text between."""
    ids = [rng.randrange(20) for _ in range(rng.randint(1, 5))]
    images, videos, seconds = [], [], []
    for _ in range(rng.randint(0, 4)):
        height, width = rng.randint(1, 4), rng.randint(1, 4)
        if rng.random() < 0.5:
            images.append([1, height * merge, width * merge])
            ids += [IDS["image_token_id"]] * (height * width)
        else:
            frames = rng.randint(1, 4)
            videos.append([frames, height * merge, width * merge])
            seconds.append(rng.choice([0.5, 1.0, rng.uniform(0.01, 9)]))
            ids += video_ids(rng, family, frames, height * width)
        ids += [rng.randrange(20) for _ in range(rng.randint(1, 6))]
    return {"input_ids": ids, "images": images, "videos": videos, "seconds": seconds}


def video_ids(rng: random.Random, family: str, frames: int, tokens: int) -> list[int]:
    if family.startswith("qwen2"):
        return [IDS["video_token_id"]] * (frames * tokens)
    token = IDS["image_token_id" if family == "glm4v" else "video_token_id"]
    parts = [[rng.randrange(20)] + [token] * tokens + [rng.randrange(20)] for _ in range(frames)]
    found = [number for part in parts for number in part]
    return [IDS["video_start_token_id"], *found, IDS["video_end_token_id"]] if family == "glm4v" else found


def grids(rows: list[list[int]]) -> torch.Tensor | None:
    return torch.tensor(rows) if rows else None


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_equal_those_of_the_model(family: str) -> None:
    rng = random.Random(family)
    for merge in (2, 1):
        model = make_model(family, merge)
        rope = MultimodalRope.from_config(model.config)
        for number in range(20):
            samples = [make_sample(rng, family, merge) for _ in range(rng.randint(1, 4))]
            length = max(len(sample["input_ids"]) for sample in samples)
            ids = torch.full((len(samples), length), 7)
            mask = torch.zeros_like(ids)
            for row, sample in enumerate(samples):
                count = len(sample["input_ids"])
                place = slice(0, count) if number % 2 else slice(length - count, length)
                ids[row, place] = torch.tensor(sample["input_ids"])
                mask[row, place] = 1
            images = grids([grid for sample in samples for grid in sample["images"]])
            videos = grids([grid for sample in samples for grid in sample["videos"]])
            seconds: Any = [second for sample in samples for second in sample["seconds"]]
            seconds = (None, seconds, torch.tensor(seconds), torch.tensor(seconds, dtype=torch.float64))[number % 4]
            given = {"image_grid_thw": images, "video_grid_thw": videos, "attention_mask": mask}
            wanted, wanted_deltas = model.get_rope_index(
                ids, mm_token_type_ids=rope.token_types(ids), second_per_grid_ts=seconds, **given
            )
            found, deltas = rope.positions(ids, second_per_grid_ts=seconds, **given)
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)
            assert torch.equal(deltas, wanted_deltas)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "glm4v"])
def test_positions_restart_in_each_sample_of_a_pack(family: str) -> None:
    rng = random.Random(1)
    start, end = (IDS["video_start_token_id"], IDS["video_end_token_id"]) if family == "glm4v" else (None, None)
    rope = MultimodalRope(
        image_token_id=30,
        video_token_id=31,
        tokens_per_second=None if start else 2,
        times_in_text=bool(start),
        video_start_id=start,
        video_end_id=end,
    )
    samples = [make_sample(rng, family, 2) for _ in range(12)]
    alone = [
        rope.positions(
            np.array(sample["input_ids"]),
            image_grid_thw=sample["images"],
            video_grid_thw=sample["videos"],
            second_per_grid_ts=sample["seconds"],
        )
        for sample in samples
    ]
    packed, deltas = rope.positions(
        [number for sample in samples for number in sample["input_ids"]],
        image_grid_thw=[grid for sample in samples for grid in sample["images"]],
        video_grid_thw=[grid for sample in samples for grid in sample["videos"]],
        second_per_grid_ts=[second for sample in samples for second in sample["seconds"]],
        cu_seqlens=np.cumsum([0] + [len(sample["input_ids"]) for sample in samples]),
    )
    assert np.array_equal(packed, np.concatenate([positions for positions, _ in alone], 1))
    assert np.array_equal(deltas, np.concatenate([delta for _, delta in alone]))


def test_neighbours_without_text_between_have_their_own_grids() -> None:
    rope = MultimodalRope(image_token_id=30, video_token_id=31)
    positions, _ = rope.positions([1, 30, 30, 30, 30, 30, 2], image_grid_thw=[[1, 4, 4], [1, 2, 2]])
    assert positions.tolist() == [[0, 1, 1, 1, 1, 3, 4], [0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4]]


def test_mistakes_say_what_does_not_fit(tmp_path: Path) -> None:
    rope = MultimodalRope(image_token_id=30, video_token_id=31)
    with pytest.raises(ConfigError, match="more image tokens than image_grid_thw says"):
        rope.positions([1, 30, 2])
    with pytest.raises(ConfigError, match="needs 4 tokens, and the text has 1 there"):
        rope.positions([1, 30, 2], image_grid_thw=[[1, 4, 4]])
    with pytest.raises(ConfigError, match="video_grid_thw has 1 rows more than the text has video tokens"):
        rope.positions([1, 2], video_grid_thw=[[1, 2, 2]])
    with pytest.raises(ConfigError, match=r"cu_seqlens=\[0, 1\] does not fit input_ids of the shape \[2\]"):
        rope.positions([1, 2], cu_seqlens=[0, 1])
    with pytest.raises(ConfigError, match="second_per_grid_ts has fewer values"):
        MultimodalRope(image_token_id=30, video_token_id=31, tokens_per_second=2).positions(
            [31], video_grid_thw=[[1, 2, 2]], second_per_grid_ts=[]
        )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigError, match="model_type='llama' has no multimodal rotary positions"):
        MultimodalRope.from_config(tmp_path)
    with pytest.raises(ConfigError, match="Give both or none"):
        MultimodalRope(image_token_id=1, video_token_id=2, video_start_id=3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image_grid_thw": [[1, -4, -4]]}, "whole numbers of at least 0"),
        ({"image_grid_thw": [[4, 4]]}, r"shape \[1, 2\].*\[media, 3\]"),
        ({"image_grid_thw": [[1.0, 4.0, 4.0]]}, "type float64"),
        ({"image_grid_thw": [[1, 4, 4]], "attention_mask": [1]}, "attention_mask has 1 values, and input_ids 6"),
        ({"image_grid_thw": [[1, 4, 4]], "token_types": [1]}, "token_types has 1 values"),
        ({"input_ids": [[[1]]]}, r"shape \[1, 1, 1\] is invalid: give \[length\]"),
    ],
)
def test_arguments_of_another_shape_are_refused(given: dict[str, Any], words: str) -> None:
    rope = MultimodalRope(image_token_id=1, video_token_id=2)
    with pytest.raises(ConfigError, match=words):
        rope.positions(**{"input_ids": [0, 1, 1, 1, 1, 0], **given})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen2_vl"}, "image_token_id=None is invalid"),
        ({"model_type": "qwen2_5_omni"}, "image_token_id=None is invalid"),
        ({"model_type": "glm4v", "image_token_id": 1, "video_token_id": 2}, "no video_start_token_id"),
    ],
)
def test_a_configuration_without_ids_of_tokens_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MultimodalRope.from_config(config)
