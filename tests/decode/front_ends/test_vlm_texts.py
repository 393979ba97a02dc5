"""Whole texts of samples with several images, as the processors of vision-language models tokenise them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_dali import ConfigError, FrontEnd, count_tokens
from energon_dali.decode.front_ends.deepseek_vl import DeepseekVLHybrid
from tests.decode.front_ends import token_budget_cases, vlm_cases
from tests.decode.front_ends.test_tokens_and_batches import SIZES, _forward_parameters, _handles, _tokenizer

_SQUARE = {"size": {"height": 28, "width": 28}}
_MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "Gemma 3n": (lambda: vlm_cases.gemma3n(**_SQUARE), "<image_soft_token>"),
    "Aya Vision": (lambda: vlm_cases.aya_vision(**_SQUARE), "<image>"),
    "Ovis 2": (lambda: vlm_cases.ovis2(**_SQUARE, crop_to_patches=True), "<image>"),
    "Gemma 4": (lambda: vlm_cases.gemma4(patch_size=4, max_soft_tokens=70), "<|image|>"),
    "Janus": (lambda: vlm_cases.deepseek_vl("Janus", **_SQUARE), "<image_placeholder>"),
    "DeepSeek-VL": (lambda: vlm_cases.deepseek_vl("DeepSeek-VL", **_SQUARE), "<image_placeholder>"),
    "Idefics 2": (lambda: vlm_cases.idefics2(do_image_splitting=True, **_SQUARE), "<image>"),
    "MiniCPM-V 4.6": (
        lambda: token_budget_cases.minicpm_v(scale_resolution=30, patch_size=4),
        "<|image_pad|>",
    ),
    "MiniCPM-V 4.6, not numbered": (
        lambda: token_budget_cases.minicpm_v(scale_resolution=30, patch_size=4, use_image_id=False),
        "<|image_pad|>",
    ),
    "LightOnOCR": (lambda: vlm_cases.lighton_ocr(size={"longest_edge": 60}, patch_size=14), "<|image_pad|>"),
}
"""Processors, and the placeholder of an image."""


def _images() -> list[Image.Image]:
    draw = np.random.default_rng(3)
    return [Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIZES]


@pytest.mark.parametrize("name", _MADE)
def test_a_text_becomes_the_tokens_of_the_processor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_budget_cases, "tokenizer", _tokenizer)
    monkeypatch.setattr(vlm_cases, "tokenizer", _tokenizer)  # of bytes, to which every line break counts
    make, token = _MADE[name]
    processor = make()
    front_end = FrontEnd.from_processor(processor)
    assert front_end.image_token == token
    texts = [f"a {token} b{token}\nc", f"{token} d"]
    images = _images()
    expanded = [
        front_end.expand_text(text, [front_end.layout(*size) for size in sizes])
        for text, sizes in zip(texts, (SIZES[:2], SIZES[2:]), strict=True)
    ]
    for text, whole, part in zip(texts, expanded, (images[:2], images[2:]), strict=True):
        made = processor(images=[part], text=[text], return_tensors="pt")
        assert processor.tokenizer(whole)["input_ids"] == made["input_ids"][0].tolist()
    handles = _handles(front_end, images)
    for text, whole, part in zip(texts, expanded, (handles[:2], handles[2:]), strict=True):
        long = processor.tokenizer(whole)["input_ids"]
        short = processor.tokenizer(text)["input_ids"]
        assert count_tokens({"tokens": long, "images": part}) == len(long)
        assert count_tokens({"tokens": short, "images": part}) == len(long), name


@pytest.mark.parametrize("numbered", [True, False])
def test_the_numbers_of_many_images_count_with_all_digits(numbered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_budget_cases, "tokenizer", _tokenizer)
    processor = token_budget_cases.minicpm_v(scale_resolution=30, patch_size=4, use_image_id=numbered)
    front_end = FrontEnd.from_processor(processor)
    for count in (10, 11, 101):
        images = [Image.new("RGB", (20, 20))] * count
        text = front_end.image_token * count
        made = processor(images=[images], text=[text], return_tensors="pt")["input_ids"][0].tolist()
        short = processor.tokenizer(text)["input_ids"]
        assert count_tokens({"tokens": short, "images": _handles(front_end, images)}) == len(made)


def test_model_keys_are_parameters_of_the_models() -> None:
    for name, module, model in (
        ("Gemma4ImageProcessor", "gemma4", "Gemma4ForConditionalGeneration"),
        ("AriaImageProcessor", "aria", "AriaForConditionalGeneration"),
        ("Glm5NextImageProcessor", "glm5_next", "Glm5NextForConditionalGeneration"),
        ("GraniteDoclingImageProcessor", "granite_docling", "GraniteDoclingForConditionalGeneration"),
        ("Kosmos2_5ImageProcessor", "kosmos2_5", "Kosmos2_5ForConditionalGeneration"),
        ("MiniCPMV4_6ImageProcessor", "minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration"),
        ("Step3p7ImageProcessor", "step3p7", "Step3p7ForConditionalGeneration"),
        ("Llama4ImageProcessor", "llama4", "Llama4ForConditionalGeneration"),
        ("Phi4MultimodalImageProcessor", "phi4_multimodal", "Phi4MultimodalForCausalLM"),
        ("Lfm2VlImageProcessor", "lfm2_vl", "Lfm2VlForConditionalGeneration"),
        ("Molmo2ImageProcessor", "molmo2", "Molmo2ForConditionalGeneration"),
        ("Idefics2ImageProcessor", "idefics2", "Idefics2ForConditionalGeneration"),
        ("Emu3ImageProcessor", "emu3", "Emu3ForConditionalGeneration"),
        ("Kimi_K25ImageProcessor", "kimi_k25", "Kimi_K25ForConditionalGeneration"),
        ("DeepseekVLHybridImageProcessor", "deepseek_vl_hybrid", "DeepseekVLHybridForConditionalGeneration"),
        ("VideoLlama3ImageProcessor", "video_llama_3", "VideoLlama3ForConditionalGeneration"),
        ("Cohere2VisionImageProcessor", "cohere2_vision", "Cohere2VisionForConditionalGeneration"),
        ("PerceptionLMImageProcessor", "perception_lm", "PerceptionLMForConditionalGeneration"),
        ("Ovis2ImageProcessor", "ovis2", "Ovis2ForConditionalGeneration"),
    ):
        front_end = FrontEnd.from_processor({"image_processor_type": name})
        assert set(front_end.model_keys) <= _forward_parameters(module, model), name


def test_a_placeholder_of_its_own_needs_its_id() -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": "Llama4ImageProcessor"}, image_token_id=7)
    handle = _handles(front_end, _images())[0]
    with pytest.raises(ConfigError, match=r"may contain '<\|image\|>'.*placeholder_id="):
        count_tokens({"tokens": [1, 2], "image": handle})
    known = _handles(front_end.with_fields(placeholder_id=5), _images())[0]
    assert count_tokens({"tokens": [1, 5, 2], "image": known}) == 2 + known.num_tokens


def test_a_hybrid_whose_squares_are_normalised_differently_folds_into_no_layer() -> None:
    import torch

    config = {"image_processor_type": "DeepseekVLHybridImageProcessor", "high_res_image_mean": [0.1, 0.2, 0.3]}
    front_end = FrontEnd.from_processor(config, dtype="uint8")
    assert isinstance(front_end, DeepseekVLHybrid)
    with pytest.raises(ConfigError, match="two squares of an image are normalised differently"):
        front_end.fold_normalization(torch.nn.Conv2d(3, 4, 16, 16))


def test_a_hybrid_whose_larger_square_is_not_resampled_by_nearest() -> None:
    name = "DeepseekVLHybridImageProcessor"
    for number, high in ((0, "hamming"), (3, "bicubic")):
        config = {"image_processor_type": name, "resample": 5, "high_res_resample": number}
        front_end = FrontEnd.from_processor(config)
        assert isinstance(front_end, DeepseekVLHybrid)
        assert (front_end.filter, front_end.high_res_filter) == ("hamming", high)


def test_phi4_has_no_bytes_of_its_thumbnail() -> None:
    with pytest.raises(ConfigError, match="the thumbnail is interpolated from normalised values"):
        FrontEnd.from_processor({"image_processor_type": "Phi4MultimodalImageProcessor"}, dtype="uint8")


def test_tiles_of_different_numbers_become_those_of_one_image() -> None:
    from energon_dali import batch_vision

    config = {"image_processor_type": "PerceptionLMImageProcessor", "tile_size": 14, "max_num_tiles": 4}
    front_end = FrontEnd.from_processor(config)
    inputs = [handle.decode() for handle in _handles(front_end, _images())]
    rows = [entry.rows for entry in inputs]
    assert len(set(rows)) > 1
    assert batch_vision(inputs)["pixel_values"].shape == (1, sum(rows), 3, 14, 14)
    assert batch_vision([inputs[0]] * 2)["pixel_values"].shape == (2, rows[0], 3, 14, 14)
