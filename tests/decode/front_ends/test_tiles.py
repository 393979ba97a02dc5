"""Texts, batches and refusals of the families that cut images into tiles, and LLaVA; pixels are compared in `cases`."""

from __future__ import annotations

import ast
import io
import json
import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali import FrontEnd, SampleDecoder, batch_vision, count_tokens
from energon_dali.decode import MediaHandle
from energon_dali.decode.front_ends.internvl import InternVL
from energon_dali.decode.front_ends.llava_next import LlavaNext
from energon_dali.decode.front_ends.llava_onevision import LlavaOnevision
from energon_dali.decode.front_ends.mllama import Mllama
from energon_dali.errors import ConfigError, DecodeError
from tests.decode.front_ends import tile_cases
from tests.decode.front_ends.comparison import difference

SIZES = ((64, 42), (1, 1), (30, 100), (1, 80), (33, 57))
_SMALL = {"size": {"height": 28, "width": 28}, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [112, 84]]}
_CROPPED = {**_SMALL, "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
_LLAVA = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 35}}
_TEXTS: tuple[dict[str, Any], ...] = (
    {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    {"patch_size": 7, "vision_feature_select_strategy": "full"},
    {"patch_size": 14},
)
_MODELS = {
    "internvl": "InternVLForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "mllama": "MllamaForConditionalGeneration",
}


def _processors() -> Iterator[Any]:
    yield pytest.param("internvl", lambda: tile_cases.internvl({"height": 20, "width": 30}), id="internvl")
    for number, text in enumerate(_TEXTS):
        yield pytest.param(
            "llava", lambda text=text: tile_cases.llava(text, do_pad=True, **_LLAVA), id=f"llava-{number}"
        )
        yield pytest.param(
            "llava_next",
            lambda text=text: tile_cases.llava_next(text, do_pad=False, **_CROPPED),
            id=f"llava-next-{number}",
        )
        onevision = {**text, "num_image_tokens": 4 + number, "vision_aspect_ratio": f"anyres_max_{1 + 8 * number}"}
        del onevision["patch_size"]
        onevision.pop("num_additional_image_tokens", None)
        yield pytest.param(
            "llava_onevision",
            lambda text=onevision: tile_cases.llava_onevision(text, **_SMALL),
            id=f"llava-onevision-{number}",
        )
    yield pytest.param("mllama", lambda: tile_cases.mllama(28, max_image_tiles=6), id="mllama")


PROCESSORS = list(_processors())


def _image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _handle(decoder: SampleDecoder, image: Image.Image) -> MediaHandle:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    handle = decoder.stage("png", buffer.getvalue())
    assert isinstance(handle, MediaHandle)
    return handle


def _decoded(decoder: SampleDecoder, handles: Sequence[MediaHandle]) -> list[Any]:
    return [outcome.value for outcome in decoder.decode_block(handles)]  # type: ignore[union-attr]


def _taken_by_forward(module: str) -> set[str]:
    """Returns the parameters of the model's forward, from its source: importing models takes seconds."""
    spec = find_spec(f"transformers.models.{module}.modeling_{module}")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == _MODELS[module]:
            (forward,) = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "forward")
            return {argument.arg for argument in forward.args.args}
    raise AssertionError(module)


@pytest.mark.parametrize(("module", "make"), PROCESSORS)
def test_text_and_batch_equal_those_of_the_processor(module: str, make: Any) -> None:
    processor = make()
    front_end = FrontEnd.from_processor(processor)
    decoder = SampleDecoder(front_end=front_end)
    token = processor.image_token
    assert front_end.image_token == token
    for sizes in (SIZES[:1], SIZES[1:2], SIZES):
        images = [_image(*size) for size in sizes]
        text = f"a {token} of" + f" {token} and" * (len(sizes) - 1)
        nested = module == "mllama"
        expected = dict(processor(images=[images] if nested else images, text=text, return_tensors="pt"))
        handles = [_handle(decoder, image) for image in images]
        expanded = front_end.expand_text(text, [handle.layout for handle in handles])
        # Mllama's processor adds the first token to the text.
        ids = processor.tokenizer(("<s>" if nested else "") + expanded, return_tensors="pt")["input_ids"]
        assert torch.equal(ids, expected["input_ids"])
        placed = int((ids == processor.tokenizer.convert_tokens_to_ids(token)).sum())
        assert placed == sum(handle.layout.num_features for handle in handles)
        short = processor.tokenizer(("<s>" if nested else "") + text, return_tensors="pt")["input_ids"]
        for tokens in (ids, short):
            assert count_tokens({"tokens": tokens, "images": handles}) == ids.shape[1]
        if not nested:
            assert [handle.num_tokens for handle in handles] == tile_cases.own_tokens(processor, sizes)
        values = _decoded(decoder, handles)
        batch = batch_vision(values, for_model=True)
        for key in ("input_ids", "attention_mask", "cross_attention_mask", "token_type_ids", "mm_token_type_ids"):
            expected.pop(key, None)
        assert difference(batch, expected) is None
        assert set(batch) <= _taken_by_forward(module)
        whole = tile_cases.run_nested(processor, images) if nested else tile_cases.run(processor, images)
        assert difference(batch_vision([[value] for value in values] if nested else values), whole) is None


def test_a_saved_processor_needs_no_transformers(tmp_path: Path) -> None:
    for number, parameter in enumerate(PROCESSORS):
        processor = parameter.values[1]()
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "processor_config.json").write_text(processor.to_json_string())
        # The id of the token is the tokenizer's, which the file does not have.
        front_end = FrontEnd.from_processor(processor)
        assert front_end.image_token_id == processor.image_token_id
        assert FrontEnd.from_processor(folder) == front_end.with_fields(image_token_id=None), parameter.id


def test_published_files_of_the_time_before_processors_were_saved(tmp_path: Path) -> None:
    # The image processor's own file says crop_to_patches=false; InternVL's processor cuts images all the same.
    values = {"image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": False, "size": 448}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**values, "processor_class": "InternVLProcessor"}))
    front_end = FrontEnd.from_processor(tmp_path)
    assert front_end.layout(1024, 768).num_tokens == 13 * 256 + 2
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    assert FrontEnd.from_processor(tmp_path).layout(1024, 768).num_tiles == 1


def test_samples_of_onevision_with_several_images_and_with_none() -> None:
    processor = tile_cases.llava_onevision({"num_image_tokens": 4, "vision_feature_select_strategy": "full"}, **_SMALL)
    single = FrontEnd.from_processor(processor)
    assert isinstance(single, LlavaOnevision)
    several = single.with_fields(several_images=True)
    decoder = SampleDecoder(front_end=single)
    sizes = [[SIZES[0], SIZES[3]], [SIZES[2]], [], [SIZES[1], SIZES[4], SIZES[0]]]
    images = [[_image(*size) for size in sample] for sample in sizes]
    handles = [[_handle(decoder, image) for image in sample] for sample in images]
    assert single.vision_feature_select_strategy == "full"
    with pytest.raises(ConfigError, match="several_images=True, by `handle"):
        batch_vision([_decoded(decoder, sample) for sample in handles])
    chosen = [
        [handle.with_front_end(several) if len(sample) > 1 else handle for handle in sample] for sample in handles
    ]
    batch = batch_vision([_decoded(decoder, sample) for sample in chosen])
    assert difference(batch, dict(processor.image_processor(images, return_tensors="pt"))) is None
    assert batch["batch_num_images"].tolist() == [2, 1, 3]
    text = ["a <image> <image>", "of <image>", "nothing", "<image> <image> <image>"]
    expected = processor(images=images, text=text, return_tensors="pt", padding=True)["input_ids"]
    expanded = [
        single.expand_text(prompt, [handle.layout for handle in sample])
        for prompt, sample in zip(text, chosen, strict=True)
    ]
    assert torch.equal(processor.tokenizer(expanded, return_tensors="pt", padding=True)["input_ids"], expected)
    with pytest.raises(ConfigError, match="a sample with 1 images"):
        batch_vision(_decoded(decoder, chosen[0])[:1])


def test_a_handle_of_a_decoder_without_a_front_end_gets_none() -> None:
    handle = MediaHandle("png", b"", "png", 4, 4, SampleDecoder().spec)
    with pytest.raises(ConfigError, match="has no front end"):
        handle.with_front_end(Mllama.from_processor({"image_processor_type": "MllamaImageProcessor"}))


def test_samples_of_mllama_with_several_images_and_with_none() -> None:
    processor = tile_cases.mllama(28, max_image_tiles=6)
    front_end = FrontEnd.from_processor(processor)
    assert isinstance(front_end, Mllama)
    decoder = SampleDecoder(front_end=front_end)
    samples = [[_image(*size) for size in sample] for sample in (SIZES[:1], [], SIZES[1:4], [SIZES[4], SIZES[0]])]
    inputs = [_decoded(decoder, [_handle(decoder, image) for image in sample]) for sample in samples]
    batch = batch_vision(inputs)
    assert difference(batch, dict(processor.image_processor(samples, return_tensors="pt"))) is None
    # One image alone, several with text between, and several in a row.
    token = front_end.image_token
    texts = [f"a {token} of", "nothing", f"{token} a {token} of {token} and", f"a {token} {token} of a photograph"]
    expected = processor(images=samples, text=texts, padding=True)
    mask = front_end.cross_attention_mask(expected["input_ids"], batch["num_tiles"])
    assert mask.dtype == torch.int64
    with pytest.raises(ConfigError, match="has no id of its image token"):
        front_end.with_fields(image_token_id=None).cross_attention_mask(expected["input_ids"], batch["num_tiles"])
    assert torch.equal(mask, torch.from_numpy(np.asarray(expected["cross_attention_mask"])))


def test_layouts_equal_the_rules_of_the_processors() -> None:
    from transformers import image_processing_utils
    from transformers.models.mllama import image_processing_pil_mllama as mllama

    get_patch_output_size: Any = image_processing_utils.get_patch_output_size
    draw = random.Random(3)
    for _ in range(100):
        width, height = (round(8000 ** draw.random()) for _ in range(2))
        processor = tile_cases.image_processor(
            "got_ocr2",
            "GotOcr2ImageProcessorPil",
            size={"height": draw.randrange(1, 500), "width": draw.randrange(1, 500)},
            min_patches=draw.randrange(1, 5),
            max_patches=draw.randrange(1, 20),
            crop_to_patches=True,
        )
        tiles = FrontEnd.from_processor(processor).layout(width, height)
        assert tiles.num_tiles == processor.get_number_of_image_patches(height, width)
        assert tiles.num_tokens == 256 * tiles.num_tiles + 2
        resolutions = [[draw.randrange(28, 900), draw.randrange(28, 900)] for _ in range(6)]
        front_end = FrontEnd.from_processor(
            {
                "image_processor_type": "LlavaNextImageProcessor",
                "size": {"height": 28, "width": 28},
                "crop_size": {"height": 28, "width": 28},
                "image_grid_pinpoints": resolutions,
            }
        )
        assert isinstance(front_end, LlavaNext)
        layout = front_end.layout(width, height)
        best = image_processing_utils.select_best_resolution((height, width), resolutions)
        assert layout.grid == best
        fitted = get_patch_output_size(np.empty((3, height, width), np.uint8), best, "channels_first")
        assert (layout.views[1].height, layout.views[1].width) == fitted
        side, most = draw.randrange(1, 700), draw.randrange(1, 20)
        canvas = mllama.get_optimal_tiled_canvas(height, width, most, side)
        layout = Mllama(values=front_end.values, filter="bilinear", tile_size=side, max_tiles=most).layout(
            width, height
        )
        assert layout.views[0].canvas == tuple(canvas)
        assert (layout.views[0].height, layout.views[0].width) == mllama.get_image_size_fit_to_canvas(
            height, width, *canvas, side
        )


_REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("GotOcr2ImageProcessor", {"size": {"shortest_edge": 384}}, "is not a height and a width"),
    ("GotOcr2ImageProcessor", {"use_thumbnail": False}, "use_thumbnail=False"),
    ("LlavaNextImageProcessor", {"size": {"shortest_edge": 9, "longest_edge": 10}}, "neither a height and a width"),
    ("LlavaNextImageProcessor", {"crop_size": {"height": 9}}, "crop_size={'height': 9}"),
    ("LlavaNextImageProcessor", {"image_grid_pinpoints": [336]}, "image_grid_pinpoints"),
    ("LlavaNextImageProcessor", {"image_grid_pinpoints": [[100, 336]]}, "smaller than a tile"),
    ("LlavaNextImageProcessor", {"image_grid_pinpoints": []}, "has no entry"),
    ("LlavaNextImageProcessor", {"crop_size": {"height": 13, "width": 20}}, "leaves no whole patch"),
    ("LlavaOnevisionImageProcessor", {"do_center_crop": True}, "crop_size={}"),
    ("MllamaImageProcessor", {"size": {"height": 28, "width": 14}}, "is not a square"),
    ("MllamaImageProcessor", {"max_image_tiles": 0}, "max_image_tiles=0 is invalid: it must be a whole number"),
    ("MllamaImageProcessor", {"do_pad": False}, "always pads"),
    ("MllamaImageProcessor", {"do_resize": False}, "always resizes"),
    ("LlavaImageProcessor", {"do_pad": True, "image_mean": [127, 127, 127]}, "not a colour"),
    ("CLIPImageProcessor", {"do_pad": True, "do_center_crop": False}, "do_pad=True pads images of several sizes"),
    ("CLIPImageProcessor", {"do_pad": True, "pad_size": 300}, "pad_size={'height': 300, 'width': 300} pads images"),
    ("SiglipImageProcessor", {"size": {"shortest_edge": 9, "longest_edge": 10}}, "neither a height and a width"),
)


@pytest.mark.parametrize(("name", "values", "message"), _REFUSED)
def test_refuses_configurations_that_it_cannot_follow(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FrontEnd.from_processor({"image_processor_type": name, **values})


def test_takes_a_count_of_tokens_that_changes_no_pixels() -> None:
    plain = FrontEnd.from_processor({"image_processor_type": "SiglipImageProcessor"})
    assert FrontEnd.from_processor({"image_processor_type": "SiglipImageProcessor", "image_seq_length": 256}) == plain


def test_refuses_other_texts() -> None:
    for name, outer, message in (
        ("GotOcr2ImageProcessor", {"processor_class": "Kosmos2Processor"}, "Kosmos2Processor is not covered"),
        ("LlavaOnevisionImageProcessor", {"vision_aspect_ratio": "pad"}, "vision_aspect_ratio='pad'"),
    ):
        with pytest.raises(ConfigError, match=message):
            FrontEnd.from_processor({**outer, "image_processor": {"image_processor_type": name}})


def test_refuses_an_image_whose_tiles_cannot_be_stacked() -> None:
    # The last column of tiles is narrower, and nothing resizes or crops it.
    values = {"size": {"height": 30, "width": 30}, "do_resize": False, "image_grid_pinpoints": [[30, 60], [60, 100]]}
    front_end = FrontEnd.from_processor({"image_processor_type": "LlavaOnevisionImageProcessor", **values})
    decoder = SampleDecoder(front_end=front_end)
    assert _handle(decoder, _image(60, 30)).layout.num_tiles == 3
    with pytest.raises(DecodeError, match="tiles of different sizes"):
        _handle(decoder, _image(100, 60))


def test_tiles_that_are_not_resized_cannot_form_one_batch() -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": "GotOcr2ImageProcessor", "do_resize": False})
    assert isinstance(front_end, InternVL)
    decoder = SampleDecoder(front_end=front_end)
    values = _decoded(decoder, [_handle(decoder, _image(*size)) for size in SIZES[:2]])
    assert values[0].values.shape == (1, 3, 42, 64)
    with pytest.raises(ConfigError, match="different sizes cannot form one batch"):
        batch_vision(values)
