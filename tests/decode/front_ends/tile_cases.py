"""The processors of InternVL, LLaVA, LLaVA-NeXT, LLaVA-OneVision and Mllama, with tokenizers made of a few words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any

WORDS = ("a", "photograph", "of", ":", ",", "and", "nothing")


def tokenizer(*special: str, **named: str) -> Any:
    """Returns a tokenizer with `WORDS`, the special tokens, and the special tokens that have a name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(("<unk>", "<s>", *WORDS))}
    model = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    make: Any = PreTrainedTokenizerFast
    made = make(
        tokenizer_object=model,
        unk_token="<unk>",
        bos_token="<s>",
        pad_token="<unk>",
        extra_special_tokens=named,
    )
    made.add_special_tokens({"additional_special_tokens": list(special)})
    return made


def processor_class(module: str, name: str) -> Any:
    """Returns a class of processors that does not ask for a video processor, for which torchvision is needed."""
    found = getattr(import_module(f"transformers.models.{module}.processing_{module}"), name)
    return type(name, (found,), {"check_argument_for_proper_class": lambda self, *_: None})


def image_processor(module: str, name: str, **values: Any) -> Any:
    """Returns an image processor of the PIL backend."""
    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name)(**values)


def run(processor: Any, images: Sequence[Any]) -> dict[str, Any]:
    """Runs the image processor as the processor around it does."""
    passed = {**getattr(processor, "images_kwargs", {}), "return_tensors": "pt"}
    return dict(processor.image_processor(list(images), **passed))


def run_nested(processor: Any, images: Sequence[Any]) -> dict[str, Any]:
    """Likewise, with each image a sample of its own."""
    return dict(processor.image_processor([[image] for image in images], return_tensors="pt"))


def tokens(processor: Any, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Counts the placeholders in the text of the processor, each image in a sample of its own."""
    from PIL import Image

    one = run(processor, [Image.new("RGB", (40, 30))])
    counts = []
    for width, height in sizes:
        inputs = {
            **one,
            "image_sizes": [[height, width]],
            "num_patches": [patches_of(processor, height, width)],
        }
        counts.append(processor.replace_image_token(inputs, 0).count(processor.image_token))
    return counts


def own_tokens(processor: Any, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the tokens of each (width, height) as the processor counts them: with markers."""
    counted = processor._get_num_multimodal_tokens(image_sizes=[(height, width) for width, height in sizes])
    return list(counted["num_image_tokens"])


def patches_of(processor: Any, height: int, width: int) -> int:
    """Returns the tiles of an image where the image processor counts them."""
    count = getattr(processor.image_processor, "get_number_of_image_patches", None)
    return 0 if count is None else count(height, width, getattr(processor, "images_kwargs", {}))


def internvl(size: dict[str, int], **values: Any) -> Any:
    """Returns a processor of InternVL."""
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    return processor_class("internvl", "InternVLProcessor")(
        image_processor("got_ocr2", "GotOcr2ImageProcessorPil", size=size, **values),
        tokenizer(**names),
        image_seq_length=7,
    )


def drawn_internvl(draw: random.Random) -> Any:
    return internvl(
        {"height": draw.randrange(8, 90), "width": draw.randrange(8, 90)},
        min_patches=draw.randrange(1, 5),
        max_patches=draw.randrange(1, 14),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.8,
    )


def _last_size(draw: random.Random) -> dict[str, Any]:
    """Returns values for what LLaVA's processors do with each tile: mostly nothing, as those that are published."""
    edge = draw.randrange(20, 90)
    size = draw.choice(({"shortest_edge": edge}, {"height": edge, "width": edge}))
    if draw.random() < 0.5:
        return {"size": size, "crop_size": {"height": edge, "width": edge}}
    crop = {"height": draw.randrange(16, edge + 20), "width": draw.randrange(16, edge + 20)}
    resizes = draw.random() < 0.7
    # Without either the tiles have different sizes, and the processor refuses all images.
    return {"size": size, "crop_size": crop, "do_center_crop": not resizes or draw.random() < 0.7, "do_resize": resizes}


def _resolutions(draw: random.Random, values: dict[str, Any]) -> list[list[int]]:
    """Returns resolutions of at least one tile, half of them of whole tiles."""
    side = max(*values["size"].values(), *values["crop_size"].values())
    if draw.random() < 0.5:
        side = values["crop_size"]["height"] if values["crop_size"]["height"] >= side else side
        return [[side * draw.randrange(1, 5), side * draw.randrange(1, 5)] for _ in range(draw.randrange(1, 8))]
    return [[draw.randrange(side, 4 * side), draw.randrange(side, 4 * side)] for _ in range(draw.randrange(1, 8))]


def llava_next(text: dict[str, Any], **values: Any) -> Any:
    """Returns a processor of LLaVA-NeXT."""
    images = image_processor("llava_next", "LlavaNextImageProcessorPil", **values)
    return processor_class("llava_next", "LlavaNextProcessor")(images, tokenizer("<image>"), **text)


def _drawn_text(draw: random.Random) -> dict[str, Any]:
    return {
        "patch_size": draw.choice((7, 14, 16)),
        "vision_feature_select_strategy": draw.choice(("default", "full", None)),
        "num_additional_image_tokens": draw.randrange(3),
    }


def drawn_llava_next(draw: random.Random) -> Any:
    values = _last_size(draw)
    return llava_next(_drawn_text(draw), image_grid_pinpoints=_resolutions(draw, values), **values)


def published_llava_next() -> Any:
    size = {"height": 336, "width": 336}
    text = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return llava_next(text, size={"shortest_edge": 336}, crop_size=size)


def llava_onevision(text: dict[str, Any], **values: Any) -> Any:
    """Returns a processor of LLaVA-OneVision."""
    images = image_processor("llava_onevision", "LlavaOnevisionImageProcessorPil", **values)
    made = processor_class("llava_onevision", "LlavaOnevisionProcessor")
    return made(images, tokenizer("<image>", "<video>"), **text)


def drawn_llava_onevision(draw: random.Random) -> Any:
    values = _last_size(draw)
    resolutions = _resolutions(draw, values)
    if "do_center_crop" not in values:
        del values["crop_size"]
    text = {
        "num_image_tokens": draw.choice((4, 9, 30)),
        "vision_feature_select_strategy": draw.choice(("default", "full", None)),
        "vision_aspect_ratio": draw.choice(("anyres_max_9", "anyres_max_2")),
    }
    return llava_onevision(text, image_grid_pinpoints=resolutions, **values)


def published_llava_onevision() -> Any:
    return llava_onevision({"num_image_tokens": 729, "vision_feature_select_strategy": "full"})


def llava(text: dict[str, Any], **values: Any) -> Any:
    """Returns a processor of LLaVA."""
    images = image_processor("llava", "LlavaImageProcessorPil", **values)
    return processor_class("llava", "LlavaProcessor")(images, tokenizer("<image>"), **text)


def drawn_llava(draw: random.Random) -> Any:
    values = {"size": {"shortest_edge": draw.randrange(20, 90)}, "do_center_crop": True}
    values["crop_size"] = {"height": draw.randrange(20, 90), "width": draw.randrange(20, 90)}
    return llava(_drawn_text(draw), do_pad=draw.random() < 0.8, image_mean=[draw.random() for _ in range(3)], **values)


def published_llava() -> Any:
    values = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "do_pad": True}
    text = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return llava(text, **values)


def mllama(side: int, **values: Any) -> Any:
    """Returns a processor of Mllama."""
    images = image_processor("mllama", "MllamaImageProcessorPil", size={"height": side, "width": side}, **values)
    return processor_class("mllama", "MllamaProcessor")(images, tokenizer("<|image|>", "<|python_tag|>"))


def drawn_mllama(draw: random.Random) -> Any:
    return mllama(draw.randrange(8, 120), max_image_tiles=draw.randrange(1, 12), resample=draw.randrange(6))
