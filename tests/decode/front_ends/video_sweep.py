"""Compares video front ends with the video processors of transformers, on drawn videos and configurations.

The video processors need torchvision. It may be installed in a folder of its own, PREFIX/torchvision, for a torch that
its wheel was not built for. It is imported only in processes of their own.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from energon_dali.decode.front_ends.smolvlm_video import number_in_words
from tests.decode.front_ends.comparison import Comparison
from tests.decode.front_ends.published import published
from tests.decode.front_ends.tile_cases import processor_class, tokenizer
from tests.decode.front_ends.vlm_cases import GEMMA4_TOKENS

FAMILIES = {
    "Qwen2-VL videos": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "Qwen3-VL videos": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "GLM-4V videos": ("glm4v", "Glm4vVideoProcessor"),
    "GLM-4.6V videos": ("glm46v", "Glm46VVideoProcessor"),
    "LLaVA-OneVision videos": ("llava_onevision", "LlavaOnevisionVideoProcessor"),
    "InternVL videos": ("internvl", "InternVLVideoProcessor"),
}
VISION = {
    "VideoMAE videos": ("videomae", "VideoMAEVideoProcessor"),
    "TimeSformer videos": ("timesformer", "TimesformerVideoProcessor"),
    "ViViT videos": ("vivit", "VivitVideoProcessor"),
    "V-JEPA 2 videos": ("vjepa2", "VJEPA2VideoProcessor"),
}
"""Videos of vision models, which have no tokens."""
CROPPED = {
    "InstructBLIP videos": ("instructblipvideo", "InstructBlipVideoVideoProcessor"),
    "LLaVA-NeXT-Video": ("llava_next_video", "LlavaNextVideoVideoProcessor"),
    "Perception LM videos": ("perception_lm", "PerceptionLMVideoProcessor"),
    "SAM 2 videos": ("sam2_video", "Sam2VideoVideoProcessor"),
    "Video-LLaVA": ("video_llava", "VideoLlavaVideoProcessor"),
}
"""Videos whose frames are resized and cropped, most with text."""
TIMED = {
    "Cohere Compass videos": ("cohere_compass", "CohereCompassVideoProcessor"),
    "Cosmos 3 Edge videos": ("cosmos3_edge", "Cosmos3EdgeVideoProcessor"),
    "Gemma 4 videos": ("gemma4", "Gemma4VideoProcessor"),
    "GLM-5 videos": ("glm5_next", "Glm5NextVideoProcessor"),
    "GLM-GA videos": ("glmga", "GlmgaVideoProcessor"),
    "SmolVLM videos": ("smolvlm", "SmolVLMVideoProcessor"),
    "Kimi-K2.5 videos": ("kimi_k25", "Kimi_K25VideoProcessor"),
}
"""Videos with times in their text, as patches."""
FAMILIES |= VISION | CROPPED | TIMED
_VISION_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
AROUND = {
    "LlavaNextVideoVideoProcessor": lambda inner: _processor(
        "llava_next_video", "LlavaNextVideoProcessor", inner, None, tokenizer("<image>", "<video>"), patch_size=7
    ),
    "PerceptionLMVideoProcessor": lambda inner: _processor(
        "perception_lm",
        "PerceptionLMProcessor",
        inner,
        None,
        tokenizer(image_token="<|image|>", video_token="<|video|>"),
        patch_size=5,
        pooling_ratio=2,
    ),
    "CohereCompassVideoProcessor": lambda inner: _processor(
        "cohere_compass", "CohereCompassProcessor", None, tokenizer(**_VISION_TOKENS), inner
    ),
    "Cosmos3EdgeVideoProcessor": lambda inner: _processor(
        "cosmos3_edge", "Cosmos3EdgeProcessor", None, tokenizer(**_VISION_TOKENS), inner
    ),
    "Gemma4VideoProcessor": lambda inner: _processor(
        "gemma4", "Gemma4Processor", None, None, tokenizer(**GEMMA4_TOKENS, video_token="<|video|>"), inner
    ),
    "Glm5NextVideoProcessor": lambda inner: _processor(
        "glm5_next",
        "Glm5NextProcessor",
        None,
        tokenizer(image_token="<|image|>", video_token="<|video|>"),
        inner,
    ),
    "Kimi_K25VideoProcessor": lambda inner: _processor(
        "kimi_k25", "Kimi_K25Processor", None, tokenizer(**_VISION_TOKENS), inner
    ),
    "SmolVLMVideoProcessor": lambda inner: _smolvlm(inner),
    "VideoLlavaVideoProcessor": lambda inner: _processor(
        "video_llava", "VideoLlavaProcessor", None, inner, tokenizer("<image>", "<video>"), patch_size=9
    ),
}
"""By video processor: makes a processor around it, whose texts are compared."""


def _smolvlm(inner: Any) -> Any:
    """Returns the processor of SmolVLM, which needs num2words, with our numbers in words where that is missing."""
    module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    if not hasattr(module, "num2words") or not module.is_num2words_available():
        vars(module).update(num2words=number_in_words, is_num2words_available=lambda: True)
    words = tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>")
    return _processor("smolvlm", "SmolVLMProcessor", None, words, inner, image_seq_len=4)


def _processor(module: str, name: str, *parts: Any, **values: Any) -> Any:
    return processor_class(module, name)(*parts, **values)


_OF_ONE_SIZE = ("LlavaOnevisionVideoProcessor", "InternVLVideoProcessor")
_BY_RATE = (
    *("Qwen3VLVideoProcessor", "Glm4vVideoProcessor", "CohereCompassVideoProcessor", "Cosmos3EdgeVideoProcessor"),
    *("Glm5NextVideoProcessor", "GlmgaVideoProcessor", "Kimi_K25VideoProcessor"),
)
"""Video processors that choose frames by rate, or have a default of it."""
_PER_PUBLISHED = 8
"""Most videos of a published configuration, which makes large values."""
_RATES = (1.0, 10.0, 24.0, 30000 / 1001, 30.0)


def import_torchvision() -> bool:
    """Makes torchvision importable in this process; returns whether it is installed."""
    from benchmarks.candidates.torchvision_import import import_torchvision_transforms

    sys.path.insert(0, str(Path(sys.prefix) / "torchvision"))
    try:
        import_torchvision_transforms()
    except ImportError:
        return False
    return True


def run_videos(name: str, count: int, seed: int) -> tuple[str, Comparison | None, float]:
    """Returns name, comparison and CPU seconds of a family; no comparison without torchvision."""
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    if not import_torchvision():
        return name, None, 0.0
    module, kind = FAMILIES[name]
    processors = importlib.import_module(f"transformers.models.{module}.video_processing_{module}")
    files: list[dict[str, Any]] = [{}]  # the class's own values, and those of published models
    files += [entry.video_values for entry in published() if _kind(entry.video_values) == kind and entry.video_values]
    first = min(count // 5, _PER_PUBLISHED * len(files))
    draw, result, used = random.Random(f"{name}{seed}"), Comparison(), set[str]()
    generator = torch.Generator().manual_seed(seed)
    while result.compared < count:
        number = result.compared
        values = files[number % len(files)] if number < first else draw_values(draw, kind)
        used.add(json.dumps(values, sort_keys=True))
        processor = getattr(processors, kind).from_dict(values)
        difference = _compare(processor, draw, generator, result)
        if difference is not None:
            result.differences.append(f"{difference} with {values}")
    result.configurations = len(used)
    return name, result, time.process_time() - start


def _kind(values: dict[str, Any] | None) -> str | None:
    return None if values is None else values["video_processor_type"]


def draw_values(draw: random.Random, kind: str) -> dict[str, Any]:
    """Returns the values of a video processor."""
    if kind in [name for _, name in (VISION | CROPPED).values()]:
        values = _draw_vision_values(draw)
        if kind == "Sam2VideoVideoProcessor":
            values |= {
                "size": {"height": draw.randint(4, 120), "width": draw.randint(4, 120)},
                "do_center_crop": False,
                "do_resize": True,
            }
        return values
    values: dict[str, Any] = {"do_sample_frames": draw.random() < 0.7}
    if kind == "SmolVLMVideoProcessor":
        sizes = ({"longest_edge": draw.randint(9, 200)}, {"height": draw.randint(9, 90), "width": draw.randint(9, 90)})
        values |= {"size": draw.choice(sizes), "max_image_size": {"longest_edge": draw.randint(5, 120)}}
        return values | {
            "fps": draw.choice((0.5, 1, 4)),
            "num_frames": draw.randint(1, 20),
            "resample": draw.choice((1, 2)),
        }
    if kind == "Gemma4VideoProcessor":
        values |= {"max_soft_tokens": draw.choice((70, 140)), "pooling_kernel_size": draw.choice((1, 2, 3))}
        return values | {"patch_size": draw.choice((4, 8)), "num_frames": draw.randint(1, 20)}
    if draw.random() < 0.1:
        values["do_rescale"] = values["do_normalize"] = False
    for name in ("do_center_crop", "crop_size", "do_pad"):
        values[name] = None
    if kind in _OF_ONE_SIZE:
        values["size"] = {"height": draw.randint(1, 120), "width": draw.randint(1, 120)}
    else:
        fewest = draw.randint(1, 40_000)
        values["size"] = {"shortest_edge": fewest, "longest_edge": fewest + draw.randint(1, 600_000)}
        values["patch_size"] = draw.choice((8, 14, 16))
        values["merge_size"] = draw.choice((1, 2, 3))
        values["temporal_patch_size"] = draw.choice((1, 2, 3))
    if kind == "Kimi_K25VideoProcessor":
        side = draw.choice((5, 20, 300))
        values |= {"size": {"max_height": side, "max_width": side}, "max_patches": draw.choice((12, 200, 5000))}
    if kind == "Cosmos3EdgeVideoProcessor":
        values["temporal_patch_size"] = 1
    if kind == "Glm5NextVideoProcessor":
        values |= {"min_image_tokens": draw.randint(1, 60), "max_image_tokens": draw.randint(60, 3000)}
        values |= {"size": {"longest_edge": 1}, "max_duration": draw.choice((0, 1, 3))}
    if kind in ("Glm5NextVideoProcessor", "GlmgaVideoProcessor"):
        values["max_frames"] = draw.choice((8, 30, 640))
    if kind.startswith(("Qwen", "CohereCompass")):
        values["cap_pixels_per_frame"] = draw.random() < 0.5
        values["max_video_tokens"] = draw.randint(10, 5000)
        values["min_frames"], values["max_frames"] = draw.randint(1, 8), draw.randint(8, 40)
    if kind == "InternVLVideoProcessor":
        values["initial_shift"] = draw.choice((True, False, 0.5, 2))
    if kind in _BY_RATE or draw.random() < 0.5:
        if kind != "Glm46VVideoProcessor":
            values["fps"] = draw.choice((0.5, 1, 2, 3.7))
    else:
        values["num_frames"] = draw.randint(1, 20)
    return values


def _draw_vision_values(draw: random.Random) -> dict[str, Any]:
    one, two = draw.randint(4, 120), draw.randint(4, 120)
    values: dict[str, Any] = {
        "size": draw.choice(({"height": one, "width": two}, {"shortest_edge": one})),
        "crop_size": {"height": draw.randint(4, 140), "width": draw.randint(4, 140)},
        "do_center_crop": draw.random() < 0.8,
        "do_resize": draw.random() < 0.9,
        "do_sample_frames": draw.random() < 0.7,
        "resample": draw.choice((2, 3)),
    }
    if draw.random() < 0.1:
        values["do_rescale"] = values["do_normalize"] = False
    return values | draw.choice(({"fps": draw.choice((0.5, 1, 2, 3.7))}, {"num_frames": draw.randint(1, 20)}))


def _compare(processor: Any, draw: random.Random, generator: Any, result: Comparison) -> str | None:
    """Compares one drawn video; returns in what it differs."""
    import torch

    from energon_dali import DecodeError, VideoFrontEnd, batch_vision

    total, fps = draw.randint(1, 60), draw.choice(_RATES)
    height, width = draw.randint(20, 160), draw.randint(20, 160)
    video = torch.randint(0, 256, (total, 3, height // 4 + 1, width // 4 + 1), generator=generator, dtype=torch.uint8)
    video = torch.nn.functional.interpolate(video, (height, width), mode="bilinear", antialias=True)
    what = f"{total} frames of {width} x {height} at {fps:g}"
    metadata = {"total_num_frames": total, "fps": fps, "duration": total / fps, "frames_indices": list(range(total))}
    theirs: Any
    try:
        theirs = processor(video, video_metadata=[metadata], return_tensors="pt", return_metadata=True)
    except IndexError:  # a bug of transformers: rounding makes it ask for a frame after the last one
        return None
    except Exception as error:
        theirs = error
    make_around = AROUND.get(type(processor).__name__)
    around = make_around(processor) if make_around else None
    front_end = VideoFrontEnd.from_processor(around or processor)
    result.compared += 1
    try:
        layout = front_end.layout(width, height, total, fps)
    except DecodeError as error:
        result.refused += 1
        # Of a short video, GLM-5's processor takes no frame, and makes nothing of it.
        nothing = isinstance(theirs, Exception) or not len(theirs["video_metadata"][0].frames_indices)
        return None if nothing else f"{what}: refused: {error}"
    if isinstance(theirs, Exception):
        return f"{what}: the processor refuses it: {theirs!r}"
    frames = [int(number) for number in theirs["video_metadata"][0].frames_indices]
    if frames != list(layout.frames):
        return f"{what}: frames {list(layout.frames)} instead of {frames}"
    ours = batch_vision([front_end.render_video(video[frames], layout)])
    key = "pixel_values_videos" if "pixel_values_videos" in theirs else "pixel_values"
    values, expected = ours.get(key), theirs[key]
    if values is None:  # InternVL's processor puts the frames of all videos into one list
        values, expected = ours["pixel_values"], expected.flatten(0, 1)
    if values.shape != expected.shape:
        return f"{what}: values of the shape {list(values.shape)} instead of {list(expected.shape)}"
    if not torch.equal(values, expected):
        return f"{what}: values differ by up to {(values - expected).abs().max().item():.3g}"
    for name in sorted(ours.keys() & theirs.keys() - {key}):
        if not torch.equal(ours[name], torch.as_tensor(theirs[name])):
            return f"{what}: {name} {ours[name].tolist()}"
    merged = getattr(processor, "merge_size", 1) ** 2
    tokens = int(theirs["video_grid_thw"].prod(-1).sum()) // merged if "video_grid_thw" in theirs else None
    if around is not None:
        result.texts += 1
        text = around.replace_video_token(theirs, 0)
        if front_end.video_text(layout) != text:
            return f"{what}: text {front_end.video_text(layout)[:120]!r}... instead of {text[:120]!r}..."
        tokens = max(text.count(front_end.video_token), text.count(front_end.image_token))
    if tokens is not None:
        result.tokens += 1
        if tokens != layout.num_tokens:
            return f"{what}: {layout.num_tokens} tokens instead of {tokens}"
    return None
