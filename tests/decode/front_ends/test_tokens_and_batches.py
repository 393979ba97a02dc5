"""Texts, batches and refusals of Gemma 3, Idefics3, ImageGPT, Pixtral and SigLIP 2; pixels are compared in `cases`."""

from __future__ import annotations

import ast
import io
import json
import pickle
import random
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energon_dali import FrontEnd, SampleDecoder, batch_vision, count_tokens
from energon_dali.decode.front_ends.imagegpt import ImageGPT
from energon_dali.decode.front_ends.siglip2 import Siglip2
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.samples.batching import generic_batch
from tests.decode.front_ends import mixed_cases
from tests.decode.front_ends.comparison import difference
from tests.decode.front_ends.mixed_cases import processor_class
from tests.photographs import photograph_file

SIZES = ((90, 45), (30, 80), (9, 9))
"""Width and height: a sample of two images, and one of one."""


def _images() -> list[Image.Image]:
    draw = np.random.default_rng(3)
    return [Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIZES]


def _handles(front_end: FrontEnd, images: list[Image.Image]) -> list[Any]:
    decoder = SampleDecoder(front_end=front_end)
    handles = []
    for image in images:
        file = io.BytesIO()
        image.save(file, "PNG")
        handles.append(decoder.stage("png", file.getvalue()))
    return handles


def _render(front_end: FrontEnd, images: list[Image.Image]) -> list[Any]:
    return [handle.decode() for handle in _handles(front_end, images)]


def _tokenizer(*special: str, **named: str) -> Any:
    """Returns a tokenizer of bytes, to which every line break counts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", extra_special_tokens=named)
    made.add_tokens(list(special), special_tokens=True)
    return made


def _gemma3() -> Any:
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    inner = processor_class("gemma3", "Gemma3ImageProcessor")(size={"height": 20, "width": 28}, do_pan_and_scan=True)
    tokens = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return Gemma3Processor(inner, _tokenizer(**tokens), image_seq_length=4)


def _idefics3() -> Any:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    inner = processor_class("idefics3", "Idefics3ImageProcessor")(
        max_image_size={"longest_edge": 28}, size={"longest_edge": 84}
    )
    tags = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    return Idefics3Processor(inner, _tokenizer("<global-img>", *tags), image_seq_len=3)


@pytest.fixture
def pixtral_processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The processor, which takes one function from a module that only torchvision can import."""
    from transformers.models.pixtral import image_processing_pil_pixtral as pil_backend

    stand_in = ModuleType("transformers.models.pixtral.image_processing_pixtral")
    stand_in.get_resize_output_image_size = pil_backend.get_resize_output_image_size  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    module = "transformers.models.pixtral.processing_pixtral"
    monkeypatch.delitem(sys.modules, module, raising=False)
    from importlib import import_module

    found = import_module(module).PixtralProcessor
    monkeypatch.delitem(sys.modules, module)
    inner = processor_class("pixtral", "PixtralImageProcessor")(size={"longest_edge": 60})
    return found(inner, _tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]"), patch_size=4, spatial_merge_size=2)


def _check_text(processor: Any, front_end: FrontEnd, **options: Any) -> dict[str, Any]:
    """Compares the ids of two samples' texts, and of their image tokens; returns what the processor made."""
    images, token = _images(), front_end.image_token
    texts = [f"a {token} b{token}\nc", f"{token}d"]
    made = processor(images=[images[:2], images[2:]], text=texts, padding=True, **options)
    layouts = [front_end.layout(*size) for size in SIZES]
    expanded = [front_end.expand_text(texts[0], layouts[:2]), front_end.expand_text(texts[1], layouts[2:])]
    ids = np.asarray(made["input_ids"]).tolist()
    assert processor.tokenizer(expanded, padding=True)["input_ids"] == ids
    counts = [sum(layout.num_features for layout in layouts[:2]), layouts[2].num_features]
    feature = processor.tokenizer.convert_tokens_to_ids(getattr(front_end, "feature_token", token))
    assert front_end.image_token_id == feature
    assert [row.count(feature) for row in ids] == counts
    if not options.get("images_kwargs"):
        own = processor._get_num_multimodal_tokens(image_sizes=[(height, width) for width, height in SIZES])
        assert [layout.num_tokens for layout in layouts] == own["num_image_tokens"]
        handles = _handles(front_end, images)
        for text, whole, part in ((texts[0], expanded[0], handles[:2]), (texts[1], expanded[1], handles[2:])):
            short, long = processor.tokenizer([text])["input_ids"][0], processor.tokenizer([whole])["input_ids"][0]
            for tokens in (short, long):
                assert count_tokens({"tokens": tokens, "images": part}) == len(long)
    return dict(made)


def test_idefics3_text_and_nested_samples() -> None:
    processor = _idefics3()
    front_end = FrontEnd.from_processor(processor)
    made = _check_text(processor, front_end, return_tensors="pt")
    first, second, third = _render(front_end, _images())
    batch = batch_vision([[first, second], [third]], for_model=True)
    assert difference(batch, {key: made[key] for key in ("pixel_values", "pixel_attention_mask")}) is None
    assert batch["pixel_attention_mask"].sum((1, 2, 3)).tolist() == [14 * 28 * 28, 10 * 28 * 28]


def test_idefics3_batches_equal_the_image_processors() -> None:
    inner, images = _idefics3().image_processor, _images()
    front_end = FrontEnd.from_processor(inner, returns_rows=True)
    first, second, third = _render(front_end, images)
    for nested, inputs in (
        (images, [first, second, third]),  # one sample
        ([images[:1], images[1:]], [[first], [second, third]]),
        ([images[:2], [], images[2:]], [[first, second], [], [third]]),
    ):
        theirs = inner(nested, return_row_col_info=True, return_tensors="pt")
        ours = batch_vision(inputs)
        assert (ours.pop("rows"), ours.pop("cols")) == (theirs.pop("rows"), theirs.pop("cols"))
        assert difference(ours, dict(theirs)) is None


def test_smolvlm_has_the_text_of_idefics3_and_its_own_number_of_tokens() -> None:
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    inner = processor_class("smolvlm", "SmolVLMImageProcessor")(max_image_size={"longest_edge": 14})
    front_end = FrontEnd.from_processor(inner)
    assert front_end.image_seq_len == 64  # type: ignore[attr-defined]
    front_end = FrontEnd.from_processor(inner, longest_edge=50, image_seq_len=2)
    for size in SIZES:
        layout = front_end.layout(*size)
        expected = get_image_prompt_string(*layout.grid, 2, "<fake_token_around_image>", "<image>", "<global-img>")
        assert front_end.image_text(layout) == expected


def test_gemma3_text_and_crops() -> None:
    processor = _gemma3()
    assert FrontEnd.from_processor(processor).layout(90, 45).grid == (0,)  # as the processor passes it on
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 9}
    _check_text(processor, FrontEnd.from_processor(processor), return_tensors="pt")
    front_end = FrontEnd.from_processor(processor, **options)
    made = _check_text(processor, front_end, images_kwargs=options, return_tensors="pt")
    inputs = _render(front_end, _images())
    assert [entry.layout.grid for entry in inputs] == [(2,), (3,), (0,)]
    assert difference(batch_vision(inputs, for_model=True), {"pixel_values": made["pixel_values"]}) is None
    assert batch_vision(inputs)["num_crops"].tolist() == [2, 3, 0]


def test_gemma3_counts_the_words_around_crops() -> None:
    config = {"image_processor_type": "Gemma3ImageProcessor"}
    front_end = FrontEnd.from_processor(config, do_pan_and_scan=True, pan_and_scan_min_crop_size=9, image_seq_length=4)
    for size, crops in ((SIZES[0], 2), (SIZES[1], 3), (SIZES[2], 0)):
        layout = front_end.layout(*size)
        assert layout.grid == (crops,)
        pieces = re.findall(r"<\w+>|\n\n| ?\w+| ", front_end.image_text(layout))  # as Gemma's tokenizer splits it
        assert front_end.text_tokens(layout) == len(pieces)
        assert layout.num_tokens == layout.num_features == 4 * (1 + crops)


def test_gemma3_needs_the_id_of_its_placeholder() -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": "Gemma3ImageProcessor"}, image_token_id=7)
    sample = {"tokens": [1, 2], "image": _handles(front_end, _images())[0]}
    with pytest.raises(ConfigError, match=r"may contain '<start_of_image>'.*placeholder_id="):
        count_tokens(sample)
    known = {**sample, "image": _handles(front_end.with_fields(placeholder_id=5), _images())[0]}
    assert count_tokens(known) == 2 + 260
    assert count_tokens({**known, "tokens": [1, 5, 2]}) == 2 + 260
    assert count_tokens({**known, "tokens": [1, 8, 5, *[7] * 256, 6, 8, 2]}) == 2 + 260
    assert count_tokens({**sample, "tokens": [1, 8, 5, *[7] * 256, 6, 8, 2]}) == 2 + 260


def test_a_saved_processor_is_read_with_its_text(tmp_path: Path) -> None:
    for processor in (_gemma3(), _idefics3()):
        folder = tmp_path / type(processor).__name__
        processor.save_pretrained(folder)
        # Only the tokenizer has the ids and merges line breaks, and it is not in these files.
        unknown: dict[str, Any] = {"image_token_id": None, "placeholder_id": None, "blank_line_tokens": 1}
        assert FrontEnd.from_processor(folder) == FrontEnd.from_processor(processor).with_fields(**unknown)


def test_pixtral_text_and_padding(pixtral_processor: Any) -> None:
    front_end = FrontEnd.from_processor(pixtral_processor)
    made = _check_text(pixtral_processor, front_end)
    inputs = _render(front_end, _images())
    batch = batch_vision([inputs[:2], inputs[2:]])
    assert difference(batch, {key: made[key] for key in ("pixel_values", "image_sizes")}) is None
    assert batch["pixel_values"].shape == (3, 3, 64, 64)
    alone = batch_vision(inputs[2:])
    assert (alone["pixel_values"].shape, alone["image_sizes"].tolist()) == ((1, 3, 16, 16), [[16, 16]])


def test_siglip2_pads_to_the_same_number_of_patches() -> None:
    inner = processor_class("siglip2", "Siglip2ImageProcessor")(patch_size=4, max_num_patches=20)
    front_end = FrontEnd.from_processor(inner)
    inputs = _render(front_end, _images())
    assert [len(entry.values) for entry in inputs] == [entry.num_tokens for entry in inputs] == [18, 18, 16]
    assert difference(batch_vision(inputs), dict(inner(_images(), return_tensors="pt"))) is None
    narrow = batch_vision(_render(front_end.with_fields(dtype="bfloat16"), _images()))
    assert narrow["pixel_values"].dtype == torch.bfloat16


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.sampled_from((4, 14, 16, 32)),
    st.sampled_from((1, 2, 100, 256, 1024)),
)
def test_siglip2_layout_equals_the_processors(width: int, height: int, patch: int, most: int) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches

    front_end = Siglip2(
        values=FrontEnd.from_processor({"image_processor_type": "Siglip2ImageProcessor"}).values,
        filter="bilinear",
        patch_size=patch,
        max_num_patches=most,
    )
    (view,) = front_end.layout(width, height).views
    assert (view.height, view.width) == get_image_size_for_max_num_patches(height, width, patch, most)


def test_imagegpt_breaks_ties_as_its_processor() -> None:
    # Most pixels are equally near to two or more of these colours, and rounding alone decides.
    grid = [[red / 2 - 1, green / 2 - 1, blue / 2 - 1] for red in range(5) for green in range(5) for blue in range(5)]
    random.Random(2).shuffle(grid)
    levels = np.linspace(0, 255, 9).round().astype(np.uint8)
    pixels = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3)
    options = {"size": {"height": 27, "width": 27}, "do_convert_rgb": True, "rescale_factor": 1 / 255}
    inner = processor_class("imagegpt", "ImageGPTImageProcessor")(clusters=grid, **options)
    front_end = FrontEnd.from_processor(inner, dtype="bfloat16")
    image = Image.fromarray(pixels)
    (made,) = _render(front_end, [image])
    assert made.num_tokens == 27 * 27
    assert hash(front_end) == hash(pickle.loads(pickle.dumps(front_end)))
    assert difference(batch_vision([made, made]), dict(inner([image, image], return_tensors="pt"))) is None
    assert isinstance(front_end, ImageGPT)
    assert FrontEnd.from_processor(json.loads(inner.to_json_string())) == front_end.with_fields(dtype="float32")


def test_model_keys_are_parameters_of_the_models() -> None:
    for family, module, model in (
        ("Gemma3ImageProcessor", "gemma3", "Gemma3ForConditionalGeneration"),
        ("Idefics3ImageProcessor", "idefics3", "Idefics3ForConditionalGeneration"),
        ("SmolVLMImageProcessor", "smolvlm", "SmolVLMForConditionalGeneration"),
        ("PixtralImageProcessor", "mistral3", "Mistral3ForConditionalGeneration"),
        ("Siglip2ImageProcessor", "siglip2", "Siglip2VisionModel"),
    ):
        front_end = FrontEnd.from_processor({"image_processor_type": family})
        assert set(front_end.model_keys) <= _forward_parameters(module, model), family
    assert "input_ids" in _forward_parameters("imagegpt", "ImageGPTModel")


def _forward_parameters(module: str, model: str) -> set[str]:
    """Returns the parameters of a model's forward, from its source: importing it would take seconds."""
    spec = find_spec(f"transformers.models.{module}.modeling_{module}")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == model:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    return {argument.arg for argument in (*item.args.args, *item.args.kwonlyargs)}
    raise AssertionError(f"{model} has no forward")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_processor_type": "Idefics3ImageProcessor", "do_pad": False}, "do_pad=False"),
        ({"image_processor_type": "Idefics3ImageProcessor", "size": {"shortest_edge": 9}}, "neither a longest_edge"),
        ({"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"height": 9}}, "no longest_edge"),
        ({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}, "pan_and_scan_min_crop_size, "),
        ({"image_processor_type": "Gemma3ImageProcessor", "pan_and_scan_min_crop_size": 0}, "must be a whole"),
        ({"image_processor_type": "Gemma3ImageProcessor", "size": 224}, "not a height and a width"),
        ({"image_processor_type": "PixtralImageProcessor", "do_resize": False}, "not whole patches"),
        ({"image_processor_type": "PixtralImageProcessor", "do_pad": None}, "do_pad=False"),
        ({"image_processor_type": "PixtralImageProcessor", "do_center_crop": True}, "it would cut patches"),
        ({"image_processor_type": "PixtralImageProcessor", "size": {"shortest_edge": 9}}, "neither a longest_edge"),
        ({"image_processor_type": "Siglip2ImageProcessor", "do_resize": False}, "not whole patches"),
        ({"image_processor_type": "Siglip2ImageProcessor", "do_sharpen": True}, "do_sharpen=True, which"),
        ({"image_processor_type": "ImageGPTImageProcessor"}, "clusters=None is invalid: it must be a list"),
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": [[1, 2]]}, r"clusters=\[1, 2\] is invalid"),
        ({"image_processor_type": "BeitImageProcessor", "do_reduce_labels": True}, "do_reduce_labels=True"),
        ({"image_processor_type": "BlipImageProcessor", "do_pad": True, "do_resize": False}, "of several sizes"),
        ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 9, "longest_edge": 20}}, "neither a"),
        (
            {"image_processor_type": "ConvNextImageProcessor", "do_center_crop": True, "crop_size": 9, "size": 64},
            "already cropped",
        ),
    ],
)
def test_what_would_change_pixels_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FrontEnd.from_processor(options)


def test_images_that_processors_refuse_are_refused_from_the_header() -> None:
    for module, name, options in (
        ("pixtral", "PixtralImageProcessor", {"size": {"longest_edge": 64}}),
        # Whether rounding makes a side of 0 pixels here depends on the height.
        ("idefics3", "Idefics3ImageProcessor", {"size": {"longest_edge": 49}, "max_image_size": {"longest_edge": 7}}),
    ):
        inner = processor_class(module, name)(**options)
        front_end = FrontEnd.from_processor(inner)
        refused = 0
        for height in range(200, 9000, 500):
            try:
                inner(Image.new("RGB", (1, height)), return_tensors="pt")
            except ValueError:
                refused += 1
                with pytest.raises(DecodeError, match=f"1 x {height} pixels"):
                    front_end.layout(1, height)
            else:
                front_end.layout(1, height)
        assert refused > 0, name


def test_gemma3_crops_beyond_the_image_are_black() -> None:
    inner = processor_class("gemma3", "Gemma3ImageProcessor")(
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=1,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
        size={"height": 6, "width": 5},
    )
    front_end = FrontEnd.from_processor(inner)
    images = [Image.new("RGB", size, (9, 200, 77)) for size in ((5, 1), (1, 5), (9, 2))]
    assert difference(batch_vision(_render(front_end, images)), dict(inner(images, return_tensors="pt"))) is None
    assert _render(front_end.with_fields(resampling="torch"), images)[0].values.shape == (5, 3, 6, 5)


def test_old_files_have_sizes_of_one_number() -> None:
    clip = FrontEnd.from_processor(
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "do_center_crop": True}
    )
    assert clip == FrontEnd.from_processor({"image_processor_type": "CLIPImageProcessor"})
    vit = FrontEnd.from_processor({"feature_extractor_type": "ViTFeatureExtractor", "size": 384})
    assert vit.layout(640, 480).views[0].canvas_size == (384, 384)


@pytest.mark.parametrize("where", mixed_cases.FIXED_SIZES.values(), ids=mixed_cases.FIXED_SIZES)
def test_a_file_that_says_nothing_means_the_classs_own_values(where: tuple[str, str]) -> None:
    named = FrontEnd.from_processor({"image_processor_type": where[1]})
    assert named == FrontEnd.from_processor(processor_class(*where)())


def test_the_default_batch_makes_what_batch_vision_makes() -> None:
    decoder = SampleDecoder(front_end=FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor"}))
    images = [decoder.decode("jpg", photograph_file(name).read_bytes()) for name in ("china", "flower")]
    batch = generic_batch([{"image": image, "text": "a"} for image in images])
    expected = batch_vision(images)
    assert batch["text"] == ["a", "a"]
    assert batch["image"].keys() == expected.keys()
    assert all(torch.equal(batch["image"][key], expected[key]) for key in expected)
