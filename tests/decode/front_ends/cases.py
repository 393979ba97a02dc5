"""The processors that front ends are compared with: as published, and with drawn configurations."""

from __future__ import annotations

import random
from typing import Any

from tests.decode.front_ends import mixed_cases, tile_cases, token_budget_cases, vision_cases, vlm_cases
from tests.decode.front_ends.case import Case


def _clip(draw: random.Random) -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    edge = draw.randrange(16, 300)
    return CLIPImageProcessorPil(
        size={"shortest_edge": edge},
        crop_size={"height": draw.randrange(8, 340), "width": draw.randrange(8, 340)},
        do_center_crop=draw.random() < 0.8,
        do_normalize=draw.random() < 0.8,
        resample=draw.randrange(6),
    )


def _siglip(draw: random.Random) -> Any:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return SiglipImageProcessorPil(
        size={"height": draw.randrange(8, 400), "width": draw.randrange(8, 400)},
        rescale_factor=draw.choice((1 / 255, 1 / 127.5)),
        do_rescale=draw.random() < 0.9,
    )


def _vit(draw: random.Random) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(
        size={"height": draw.randrange(8, 400), "width": draw.randrange(8, 400)},
        do_convert_rgb=draw.random() < 0.5,
        do_resize=draw.random() < 0.9,
    )


def _deit(draw: random.Random) -> Any:
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil

    return DeiTImageProcessorPil(
        size={"height": draw.randrange(8, 300), "width": draw.randrange(8, 300)},
        crop_size={"height": draw.randrange(8, 300), "width": draw.randrange(8, 300)},
        do_convert_rgb=True,
    )


def _convnext(draw: random.Random) -> Any:
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    return ConvNextImageProcessorPil(
        size={"shortest_edge": draw.choice((64, 224, 383, 384, 400))},
        crop_pct=draw.choice((0.875, 0.9, 1.0)),
        do_convert_rgb=True,
    )


def _qwen2_vl(draw: random.Random) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    few = draw.choice((28 * 28, 56 * 56, 20_000))
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": few, "longest_edge": draw.choice((60_000, 150_000, 400_000))},
        patch_size=draw.choice((8, 14, 16)),
        merge_size=draw.choice((1, 2, 3)),
        temporal_patch_size=draw.choice((1, 2)),
    )


def _glm4v(draw: random.Random) -> Any:
    name, model = draw.choice((("glm4v", "Glm4v"), ("glm46v", "Glm46V")))
    return _class(name, f"{model}ImageProcessorPil")(
        size={"shortest_edge": draw.choice((1, 28 * 28, 112 * 112)), "longest_edge": draw.randrange(30_000, 900_000)},
        patch_size=draw.choice((8, 14, 16)),
        merge_size=draw.choice((1, 2, 3)),
        temporal_patch_size=draw.choice((1, 2, 3)),
    )


def _qwen3_vl() -> Any:
    """Returns the image processor of Qwen3-VL's published model: that of Qwen2-VL with larger patches."""
    return _class("qwen2_vl", "Qwen2VLImageProcessorPil")(
        size={"shortest_edge": 65_536, "longest_edge": 16_777_216},
        patch_size=16,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def merged_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens of a processor that counts patches, of which merge_size squared are one token."""
    return [processor.get_number_of_image_patches(height, width) // processor.merge_size**2 for width, height in sizes]


CASES = (
    Case("CLIP", _clip, lambda: _class("clip", "CLIPImageProcessorPil")(), largest_ratio=110),
    Case("ConvNeXt", _convnext, lambda: _class("convnext", "ConvNextImageProcessorPil")(), largest_ratio=110),
    Case("DeiT", _deit, lambda: _class("deit", "DeiTImageProcessorPil")()),
    Case("SigLIP", _siglip, lambda: _class("siglip", "SiglipImageProcessorPil")()),
    Case("ViT", _vit, lambda: _class("vit", "ViTImageProcessorPil")()),
    Case("Qwen2-VL", _qwen2_vl, lambda: _class("qwen2_vl", "Qwen2VLImageProcessorPil")(), merged_tokens),
    Case("Qwen3-VL", _qwen2_vl, _qwen3_vl, merged_tokens),
    Case("GLM-4V", _glm4v, lambda: _class("glm4v", "Glm4vImageProcessorPil")(), merged_tokens),
    Case(
        "InternVL",
        tile_cases.drawn_internvl,
        lambda: tile_cases.internvl({"height": 448, "width": 448}),
        tile_cases.own_tokens,
        tile_cases.run,
    ),
    Case(
        "LLaVA",
        tile_cases.drawn_llava,
        tile_cases.published_llava,
        tile_cases.tokens,
        tile_cases.run,
        largest_ratio=110,
    ),
    Case(
        "LLaVA-NeXT",
        tile_cases.drawn_llava_next,
        tile_cases.published_llava_next,
        tile_cases.tokens,
        tile_cases.run,
    ),
    Case(
        "LLaVA-OneVision",
        tile_cases.drawn_llava_onevision,
        tile_cases.published_llava_onevision,
        tile_cases.tokens,
        tile_cases.run,
    ),
    Case(
        "Mllama",
        tile_cases.drawn_mllama,
        lambda: tile_cases.mllama(560),
        lambda processor, sizes: [1 for _ in sizes],
        tile_cases.run_nested,
    ),
    *(
        Case(
            name,
            mixed_cases.drawn_fixed_size(*where),
            lambda where=where: mixed_cases.processor_class(*where)(do_convert_rgb=True),  # type: ignore[misc]
            largest_ratio=30,
            slow=True,
        )
        for name, where in mixed_cases.FIXED_SIZES.items()
    ),
    Case("Gemma 3", mixed_cases.drawn_gemma3, mixed_cases.published_gemma3, mixed_cases.gemma3_tokens),
    Case(
        "Idefics3",
        mixed_cases.drawn_idefics3("idefics3", "Idefics3ImageProcessor"),
        lambda: _class("idefics3", "Idefics3ImageProcessorPil")(),
        mixed_cases.idefics3_tokens,
        mixed_cases.one_sample_each,
        slow=True,
    ),
    Case(
        "SmolVLM",
        mixed_cases.drawn_idefics3("smolvlm", "SmolVLMImageProcessor"),
        mixed_cases.published_smolvlm,
        mixed_cases.idefics3_tokens,
        mixed_cases.one_sample_each,
        slow=True,
    ),
    Case("ImageGPT", mixed_cases.drawn_imagegpt, mixed_cases.published_imagegpt),
    Case(
        "Pixtral",
        mixed_cases.drawn_pixtral,
        lambda: _class("pixtral", "PixtralImageProcessorPil")(),
        mixed_cases.pixtral_tokens,
    ),
    Case(
        "SigLIP 2",
        mixed_cases.drawn_siglip2,
        lambda: _class("siglip2", "Siglip2ImageProcessorPil")(do_convert_rgb=True),
        mixed_cases.siglip2_tokens,
    ),
    *vision_cases.CASES,
    *vlm_cases.CASES,
    *token_budget_cases.CASES,
)


def _class(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name)
