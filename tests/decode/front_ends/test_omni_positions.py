"""Positions and texts of Qwen-Omni equal those of the models and processors, for random rows of media."""

from __future__ import annotations

import random
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import ConfigError, MultimodalRope, pack_sequences
from energon_dali.decode.front_ends.audio_in_video import AudioInVideo, audio_in_video_of
from energon_dali.decode.front_ends.layout import VideoLayout, View

IDS = {
    "audio_token_id": 29,
    "image_token_id": 30,
    "video_token_id": 31,
    "vision_start_token_id": 32,
    "vision_end_token_id": 33,
    "audio_start_token_id": 34,
    "audio_end_token_id": 35,
}
AUDIO, IMAGE, VIDEO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = IDS.values()
FAMILIES = {
    "qwen2_5_omni": ("Qwen2_5Omni", 25, 2.0),
    "qwen3_omni_moe": ("Qwen3OmniMoe", 13, 1.0),
}
CASES = [(family, use) for family in FAMILIES for use in (False, True)]


def stand_in(family: str, merge: int) -> Any:
    """Returns an object with `get_rope_index` of a model, and the configuration that it reads."""
    name, rate, _ = FAMILIES[family]
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    model = getattr(module, f"{name}PreTrainedModelForConditionalGeneration")
    config = getattr(module, f"{name}ThinkerConfig")()
    for key, value in IDS.items():
        setattr(config, key, value)
    config.position_id_per_seconds = rate
    config.seconds_per_chunk = 2
    made = SimpleNamespace(config=config, spatial_merge_size=merge)
    for method in ("get_rope_index", "get_llm_pos_ids_for_vision", "get_chunked_index"):
        setattr(made, method, partial(getattr(model, method), made))
    config.vision_config.spatial_merge_size = merge
    return made


def processor_of(family: str, merge: int) -> Any:
    """Returns an object with the methods of a processor that write the text of a video with its audio."""
    name, rate, _ = FAMILIES[family]
    made = getattr(import_module(f"transformers.models.{family}.processing_{family}"), f"{name}Processor")
    bare = type(made.__name__, (made,), {"__init__": lambda self: None})()
    bare.video_processor = SimpleNamespace(merge_size=merge)
    for kind in ("audio", "video"):
        setattr(bare, f"{kind}_token", kind[0])
    bare.audio_bos_token, bare.audio_eos_token = "<", ">"
    assert bare.position_id_per_seconds == rate
    return bare


def text_of(processor: Any, grid: list[int], seconds: float, tokens: int) -> str:
    """Returns the processor's text of a video with audio."""
    videos = {"video_grid_thw": np.array([grid]), "video_second_per_grid": [seconds]}
    options = {"position_id_per_seconds": processor.position_id_per_seconds, "seconds_per_chunk": 2.0}
    return str(processor.replace_video_with_audio_token(videos, 0, {"num_audio_tokens": [tokens]}, 0, **options))


def frames_heard(family: str, frames: int) -> int:
    """Returns the tokens of audio of this many frames of a spectrogram."""
    module = import_module(f"transformers.models.{family}.processing_{family}")
    return int(module._get_feat_extract_output_lengths(frames))


def make_sample(draw: random.Random, family: str, processor: Any, merge: int, use_audio: bool) -> dict[str, Any]:
    ids = [draw.randrange(20) for _ in range(draw.randint(0, 5))]
    sample: dict[str, Any] = {"images": [], "videos": [], "seconds": [], "audio": []}
    for _ in range(draw.randint(1, 5)):
        kind = draw.choice(("image", "video", "audio", "text"))
        height, width = draw.randint(1, 4), draw.randint(1, 4)
        heard = draw.randint(3, 900)
        if kind == "image":
            sample["images"].append([1, height * merge, width * merge])
            ids += [VISION_START, *[IMAGE] * (height * width), VISION_END]
        elif kind == "audio":
            sample["audio"].append(heard)
            ids += [AUDIO_START, *[AUDIO] * frames_heard(family, heard), AUDIO_END]
        elif kind == "video":
            frames = draw.randint(1, 7)
            grid = [frames, height * merge, width * merge]
            seconds = draw.choice((1.0, 2.0, 0.5, round(draw.uniform(0.1, 6), 3)))
            sample["videos"].append(grid)
            sample["seconds"].append(seconds)
            features = [VIDEO] * (frames * height * width)
            if use_audio:
                sample["audio"].append(heard)
                text = text_of(processor, grid, seconds, frames_heard(family, heard))
                names = {"<": AUDIO_START, "a": AUDIO, "v": VIDEO, ">": AUDIO_END}
                features = [names[letter] for letter in text]
            ids += [VISION_START, *features, VISION_END]
        ids += [draw.randrange(20) for _ in range(draw.choice((0, 1, 3)))]
    return {**sample, "input_ids": ids or [1]}


def compare(family: str, use_audio: bool, seed: int) -> None:
    draw = random.Random(f"{family} {use_audio} {seed}")
    merge = draw.choice((1, 2))
    model, processor = stand_in(family, merge), processor_of(family, merge)
    rope = MultimodalRope.from_config(model.config)
    assert rope.clock is not None
    samples = [make_sample(draw, family, processor, merge, use_audio) for _ in range(draw.randint(1, 3))]
    length = max(len(sample["input_ids"]) for sample in samples)
    ids, mask = torch.full((len(samples), length), 7), torch.zeros(len(samples), length, dtype=torch.int64)
    for row, sample in enumerate(samples):
        count = len(sample["input_ids"])
        place = slice(0, count) if seed % 2 else slice(length - count, length)
        ids[row, place], mask[row, place] = torch.tensor(sample["input_ids"]), 1
    grids: dict[str, Any] = {}
    for kind in ("image", "video"):
        rows = [row for one in samples for row in one[f"{kind}s"]]
        grids[f"{kind}_grid_thw"] = torch.tensor(rows) if rows else None
    seconds = torch.tensor([second for sample in samples for second in sample["seconds"]])
    heard = torch.tensor([frames for sample in samples for frames in sample["audio"]])
    wanted, wanted_deltas = model.get_rope_index(ids, *grids.values(), mask, use_audio, heard, seconds)
    found, deltas = rope.positions(ids, **grids, second_per_grid_ts=seconds, attention_mask=mask)
    kept = mask.bool()
    assert torch.equal(found[:, kept], wanted[:, kept])
    if any(rows is not None for rows in grids.values()):  # else padding counts, as position 1
        assert torch.equal(deltas, wanted_deltas)
        assert found.dtype == wanted.dtype
        assert deltas.dtype == wanted_deltas.dtype


@pytest.mark.parametrize(("family", "use_audio"), CASES)
def test_positions_equal_those_of_the_model(family: str, use_audio: bool) -> None:
    for seed in range(12):
        compare(family, use_audio, seed)


@pytest.mark.sweep
@pytest.mark.parametrize(("family", "use_audio"), CASES)
def test_positions_equal_those_of_the_model_for_many_rows(family: str, use_audio: bool) -> None:
    for seed in range(12, 500):
        compare(family, use_audio, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_of_a_video_with_audio_equals_that_of_the_processor(family: str) -> None:
    draw = random.Random(3)
    processor = processor_of(family, 2)
    interleaved = audio_in_video_of(processor)
    assert isinstance(interleaved, AudioInVideo)
    assert interleaved.frames_per_second == FAMILIES[family][2]
    for _ in range(300):
        grid = (draw.randint(1, 20), 2 * draw.randint(1, 3), 2 * draw.randint(1, 3))
        seconds, tokens = draw.choice((1.0, 2.0, 0.5, draw.uniform(0.02, 7))), draw.randint(1, 250)
        layout = VideoLayout(9, 9, (View(9, 9),), grid[0] * grid[1] * grid[2] // 4, grid)
        assert interleaved.text("v", layout, seconds, "a", tokens) == text_of(processor, list(grid), seconds, tokens)


def test_a_video_without_audio_next_to_one_with_audio_keeps_its_own_positions() -> None:
    """`get_rope_index` counts media as if all videos had audio, and stops before the last ones."""
    rope = MultimodalRope.from_config(stand_in("qwen3_omni_moe", 2).config)
    silent = [VISION_START, VIDEO, VIDEO, VISION_END]
    heard = [VISION_START, AUDIO_START, VIDEO, AUDIO, AUDIO_END, VISION_END]
    positions, _ = rope.positions(
        [*silent, *heard], video_grid_thw=[[2, 2, 2], [1, 2, 2]], second_per_grid_ts=[1.0, 1.0]
    )
    assert positions[0].tolist() == [0, 1, 14, 15, 16, 17, 18, 18, 19, 20]


def test_fractions_survive_packing() -> None:
    rope = MultimodalRope.from_config(stand_in("qwen3_omni_moe", 2).config)
    ids = [1, VISION_START, VIDEO, VIDEO, VISION_END, 2]
    sample = {"input_ids": ids, "labels": ids}
    grids: dict[str, Any] = {"video_grid_thw": [[2, 2, 2]], "second_per_grid_ts": [0.1]}
    pack = pack_sequences([sample, sample], position_ids=lambda one: rope.positions(one["input_ids"], **grids)[0])
    assert pack.position_ids.dtype == torch.float32
    assert pack.position_ids[0, 0].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert pack.position_ids[1, 0].tolist() == pytest.approx([0, 1, 2, 3.3, 4.3, 5.3] * 2)


def test_mistakes_say_what_does_not_fit() -> None:
    rope = MultimodalRope.from_config(stand_in("qwen2_5_omni", 2).config)
    with pytest.raises(ConfigError, match="has no 1 tokens of its own that begin it"):
        rope.positions([IMAGE, 2], image_grid_thw=[[1, 2, 2]])
    with pytest.raises(ConfigError, match="of 1 x 1 x 1 merged patches has 2 tokens in the text"):
        rope.positions([VISION_START, IMAGE, IMAGE, VISION_END], image_grid_thw=[[1, 2, 2]])
    with pytest.raises(ConfigError, match="more video tokens than video_grid_thw says"):
        rope.positions([VISION_START, VIDEO, VISION_END])
