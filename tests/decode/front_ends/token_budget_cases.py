"""The processors of vision-language models whose images follow a budget of tokens, slices or tiles."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

from PIL import Image

from tests.decode.front_ends.case import Case
from tests.decode.front_ends.tile_cases import own_tokens, processor_class, run, run_nested, tokenizer
from tests.decode.front_ends.vlm_cases import image_processor, patch_texts, texts, torchvision_processor


def aria(**values: Any) -> Any:
    """Returns the processor of Aria."""
    inner = image_processor("aria", "AriaImageProcessor", **values)
    return processor_class("aria", "AriaProcessor")(inner, tokenizer(image_token="<|img|>"))


def drawn_aria(draw: random.Random) -> Any:
    """Returns the image processor alone: the one around it passes its own values."""
    rows = [[draw.choice((490, 980, 600)), draw.choice((490, 980, 700))] for _ in range(draw.randrange(1, 5))]
    return image_processor(
        "aria",
        "AriaImageProcessor",
        max_image_size=490,
        min_image_size=draw.choice((1, 20, 336)),
        split_image=draw.random() < 0.5,
        split_resolutions=draw.choice((None, rows)),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
        do_convert_rgb=True,
    )


def run_either(processor: Any, images: list[Any]) -> dict[str, Any]:
    """Runs an image processor, or that of a processor as the processor does."""
    if hasattr(processor, "image_processor"):
        return run(processor, images)
    return dict(processor(images, return_tensors="pt"))


def aria_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens of Aria, 128 or 256 for each square."""
    if hasattr(processor, "image_processor"):
        return own_tokens(processor, sizes)
    return [128 * processor.get_number_of_image_patches(height, width) for width, height in sizes]


class _VideoProcessor:
    """Stands for a video processor, of which MiniCPM-V's processor reads these."""

    slice_mode = True
    downsample_mode = "16x"


def minicpm_v(**values: Any) -> Any:
    """Returns the processor of MiniCPM-V 4.6, without that of videos."""
    inner = image_processor("minicpmv4_6", "MiniCPMV4_6ImageProcessor", **values)
    words = tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        image_start_token="<image>",
        image_end_token="</image>",
        slice_start_token="<slice>",
        slice_end_token="</slice>",
        image_id_start_token="<image_id>",
        image_id_end_token="</image_id>",
    )
    return processor_class("minicpmv4_6", "MiniCPMV4_6Processor")(inner, _VideoProcessor(), words)


def drawn_minicpm_v(draw: random.Random) -> Any:
    return minicpm_v(
        max_slice_nums=draw.randrange(1, 12),
        scale_resolution=draw.choice((60, 120, 200)),
        patch_size=draw.choice((4, 7, 14)),
        slice_mode=draw.random() < 0.85,
        downsample_mode=draw.choice(("16x", "4x")),
        use_image_id=draw.random() < 0.5,
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def minicpm_texts(processor: Any, made: dict[str, Any], count: int) -> list[str]:
    divisor = processor.image_token_divisor
    return [processor.replace_image_token(made, number, image_token_divisor=divisor) for number in range(count)]


def granite_docling(**values: Any) -> Any:
    """Returns the processor of Granite Docling."""
    inner = image_processor("granite_docling", "GraniteDoclingImageProcessor", **values)
    words = tokenizer("<fake_token_around_image>", "<global-img>", image_token="<image>")
    return processor_class("granite_docling", "GraniteDoclingProcessor")(inner, words, image_seq_len=5)


def drawn_granite_docling(draw: random.Random) -> Any:
    fewest = draw.randrange(1, 3)
    return granite_docling(
        size={"height": draw.randrange(8, 60), "width": draw.randrange(8, 60)},
        crop_to_patches=draw.random() < 0.9,
        min_patches=fewest,
        max_patches=fewest + draw.randrange(40),
        dense_max_patches=draw.choice((0, 40)),
        dense_max_scale=draw.choice((0.0, 0.5, 1.0)),
        dense_min_aspect=draw.choice((0.0, 1.2)),
        dense_max_aspect=draw.choice((0.0, 2.0)),
        fine_route=draw.random() < 0.3,
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def glm(module: str, name: str, **values: Any) -> Any:
    """Returns the processor of GLM-5, without that of videos."""
    inner = image_processor(module, f"{name}ImageProcessor", **values)
    words = tokenizer(image_token="<|image|>", video_token="<|video|>")
    return processor_class("glm5_next", "Glm5NextProcessor")(inner, words, None)


def drawn_glm5_next(draw: random.Random) -> Any:
    return glm(
        "glm5_next",
        "Glm5Next",
        min_image_tokens=draw.choice((1, 16, 100)),
        max_image_tokens=draw.choice((100, 300, 8000)),
        patch_size=draw.choice((8, 14, 16)),
        merge_size=draw.choice((1, 2, 3)),
        temporal_patch_size=draw.choice((1, 2)),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def drawn_glmga(draw: random.Random) -> Any:
    return image_processor(
        "glmga",
        "GlmgaImageProcessor",
        size={"shortest_edge": draw.choice((1, 28 * 28, 112 * 112)), "longest_edge": draw.randrange(30_000, 900_000)},
        patch_size=draw.choice((8, 14, 16)),
        merge_size=draw.choice((1, 2, 3)),
        temporal_patch_size=draw.choice((1, 2)),
    )


def muse_glimmer(**values: Any) -> Any:
    """Returns the processor of Muse Glimmer, without that of videos."""
    inner = torchvision_processor("muse_glimmer", "MuseGlimmerImageProcessor", **values)
    return processor_class("muse_glimmer", "MuseGlimmerProcessor")(inner, None, tokenizer("<|patch|>"))


def drawn_muse_glimmer(draw: random.Random) -> Any:
    return muse_glimmer(
        max_image_tokens=draw.choice((1, 30, 200, 4096)),
        patch_size=draw.choice((8, 14, 16)),
        merge_size=draw.choice((1, 2, 3)),
        temporal_patch_size=draw.choice((1, 2)),
        resample=draw.choice((1, 1, 2, 3)),
        do_normalize=draw.random() < 0.9,
    )


def step3p7(**values: Any) -> Any:
    """Returns the processor of Step 3.7."""
    inner = torchvision_processor("step3p7", "Step3p7ImageProcessor", **values)
    return processor_class("step3p7", "Step3p7Processor")(inner, tokenizer("<im_patch>"))


def drawn_step3p7(draw: random.Random) -> Any:
    side = draw.randrange(60, 240)
    return step3p7(
        size={"height": side, "width": side},
        patch_size=draw.randrange(40, 180),
        max_image_size=draw.choice((200, 400, 3024)),
        resample=draw.choice((2, 3)),
        do_normalize=draw.random() < 0.9,
    )


def nemotron_omni(**values: Any) -> Any:
    """Returns the processor of Nemotron-H Omni, without those of videos and audio."""
    name = "NemotronH_Omni_Reasoning_V3"
    inner = torchvision_processor("nemotron_h_omni", f"{name}ImageProcessor", **values)
    words = tokenizer("<image>", "<video>", "<so_embedding>")
    return processor_class("nemotron_h_omni", f"{name}Processor")(inner, None, words)


def drawn_nemotron_omni(draw: random.Random) -> Any:
    fewest = draw.choice((1, 30, 200))
    rescales = draw.random() < 0.9
    return nemotron_omni(
        patch_size=draw.choice((8, 14, 16)),
        downsample_ratio=draw.choice((0.5, 1.0)),
        min_num_patches=fewest,
        max_num_patches=draw.choice((0, fewest + 100, 2000)),
        # With fewer, the number of patches of an image would depend on how many images share a call.
        max_model_len=draw.choice((4 + 8 * fewest, 16384)),
        resample=draw.choice((2, 3)),
        do_rescale=rescales,
        do_normalize=draw.random() < 0.9 or not rescales,  # bytes are refused
    )


def kosmos2_5(**values: Any) -> Any:
    """Returns the image processor of Kosmos-2.5."""
    return image_processor("kosmos2_5", "Kosmos2_5ImageProcessor", do_convert_rgb=True, **values)


def drawn_kosmos2_5(draw: random.Random) -> Any:
    return kosmos2_5(
        patch_size={"height": draw.choice((8, 14, 16)), "width": draw.choice((8, 14, 16))},
        max_patches=draw.choice((1, 7, 64, 256, 576)),
    )


def glmga_tokens(processor: Any, sizes: Any) -> list[int]:
    return [processor.get_number_of_image_patches(height, width) // processor.merge_size**2 for width, height in sizes]


def mistral3(side: int, merge: int, **values: Any) -> Any:
    """Returns the processor of Mistral 3, which is Pixtral's with patches that are merged."""
    inner = image_processor("pixtral", "PixtralImageProcessor", patch_size=side * merge, **values)
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    return _pixtral_class()(inner, words, patch_size=side, spatial_merge_size=merge)


@cache
def _pixtral_class() -> Any:
    """Returns the class of Pixtral's processor, which takes one function from a module that only torchvision can
    import."""
    from transformers.models.pixtral import image_processing_pil_pixtral as pil_backend

    stand_in = ModuleType("transformers.models.pixtral.image_processing_pixtral")
    stand_in.get_resize_output_image_size = pil_backend.get_resize_output_image_size  # type: ignore[attr-defined]
    module = "transformers.models.pixtral.processing_pixtral"
    with patch.dict(sys.modules, {stand_in.__name__: stand_in}):
        sys.modules.pop(module, None)
        return processor_class("pixtral", "PixtralProcessor")


def run_mistral3(processor: Any, images: list[Any]) -> dict[str, Any]:
    """Runs the image processor with the patches that the processor around it passes."""
    side = processor.patch_size * processor.spatial_merge_size
    return dict(processor.image_processor(list(images), patch_size=side, return_tensors="pt"))


def mistral3_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens as the processor counts them, except of images of 1 or 3 rows: it takes those for channels."""
    counts = own_tokens(processor, sizes)
    side = processor.patch_size * processor.spatial_merge_size
    for number, size in enumerate(sizes):
        if size[1] in (1, 3):
            rows, columns = run_mistral3(processor, [Image.new("RGB", size)])["image_sizes"][0].tolist()
            counts[number] = rows // side * (columns // side + 1)
    return counts


def drawn_mistral3(draw: random.Random) -> Any:
    return mistral3(
        draw.choice((7, 14)),
        draw.choice((1, 2)),
        size={"longest_edge": draw.choice((64, 200, 500))},
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


_OMNI_TOKENS = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
AROUND_QWEN = {
    "GLM-4.6V": ("glm46v", "Glm46VProcessor"),
    "Qwen2.5-Omni": ("qwen2_5_omni", "Qwen2_5OmniProcessor"),
    "Qwen3-Omni": ("qwen3_omni_moe", "Qwen3OmniMoeProcessor"),
}
"""Module and class of processors around image processors of Qwen2-VL's kind, by name of the case."""


def around_qwen(name: str, **values: Any) -> Any:
    """Returns the processor of a case, without those of videos and audio."""
    module, kind = AROUND_QWEN[name]
    if name == "GLM-4.6V":
        inner = image_processor("glm46v", "Glm46VImageProcessor", **values)
        return processor_class(module, kind)(inner, tokenizer(image_token="<|image|>", video_token="<|video|>"), None)
    inner = image_processor("qwen2_vl", "Qwen2VLImageProcessor", **values)
    return processor_class(module, kind)(inner, None, None, tokenizer(**_OMNI_TOKENS))


def drawn_around_qwen(name: str) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        return around_qwen(
            name,
            size={"shortest_edge": draw.choice((28 * 28, 112 * 112)), "longest_edge": draw.randrange(30_000, 400_000)},
            patch_size=draw.choice((8, 14, 16)),
            merge_size=draw.choice((1, 2, 3)),
            temporal_patch_size=draw.choice((1, 2)),
            do_normalize=draw.random() < 0.9,
        )

    return drawn


ALWAYS_NORMALIZED = ("Kosmos-2.5",)
"""Cases whose processors fail on bytes."""
CASES = (
    Case(
        "Mistral 3",
        drawn_mistral3,
        lambda: mistral3(14, 2, size={"longest_edge": 1540}),
        mistral3_tokens,
        run_mistral3,
        texts=texts,
        slow=True,
    ),
    *(
        Case(
            name,
            drawn_around_qwen(name),
            lambda name=name: around_qwen(name),  # type: ignore[misc]
            own_tokens,
            run,
            texts=patch_texts,
            slow=True,
        )
        for name in AROUND_QWEN
    ),
    Case("Aria", drawn_aria, aria, aria_tokens, run_either, slow=True),
    Case("MiniCPM-V 4.6", drawn_minicpm_v, minicpm_v, None, run, texts=minicpm_texts, slow=True),
    Case("Granite Docling", drawn_granite_docling, granite_docling, None, run_nested, texts=texts, slow=True),
    Case("GLM-5", drawn_glm5_next, lambda: glm("glm5_next", "Glm5Next"), None, run, texts=patch_texts, slow=True),
    Case("GLM-GA", drawn_glmga, lambda: image_processor("glmga", "GlmgaImageProcessor"), glmga_tokens, slow=True),
    Case("Muse Glimmer", drawn_muse_glimmer, muse_glimmer, None, run, texts=patch_texts, torchvision=True),
    Case("Nemotron-H Omni", drawn_nemotron_omni, nemotron_omni, None, run, texts=texts, torchvision=True),
    Case("Step 3.7", drawn_step3p7, step3p7, None, run, texts=texts, torchvision=True),
    Case("Kosmos-2.5", drawn_kosmos2_5, kosmos2_5, slow=True),
)
