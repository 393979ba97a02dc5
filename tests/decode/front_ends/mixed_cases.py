"""Makes processors of fixed sizes, and of Gemma 3, Idefics3, ImageGPT, Pixtral and SigLIP 2."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from PIL import Image


def processor_class(module: str, name: str) -> Any:
    """Returns the PIL backend of an image processor of transformers."""
    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{name}Pil")


FIXED_SIZES = {
    "BEiT": ("beit", "BeitImageProcessor"),
    "BiT": ("bit", "BitImageProcessor"),
    "BLIP": ("blip", "BlipImageProcessor"),
    "Chinese-CLIP": ("chinese_clip", "ChineseCLIPImageProcessor"),
    "LeViT": ("levit", "LevitImageProcessor"),
    "MobileNet V1": ("mobilenet_v1", "MobileNetV1ImageProcessor"),
    "PoolFormer": ("poolformer", "PoolFormerImageProcessor"),
    "PP-Chart2Table": ("pp_chart2table", "PPChart2TableImageProcessor"),
    "PVT": ("pvt", "PvtImageProcessor"),
}
"""Module and class of processors with the same steps."""


def drawn_fixed_size(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        side: Callable[[], int] = lambda: draw.randrange(8, 260)  # noqa: E731
        # Without normalisation the processors accept any number of channels, which no model does.
        converts = draw.choice((True, True, None))
        options: dict[str, Any] = {"crop_pct": draw.choice((0.75, 0.9, 1.0))} if module == "poolformer" else {}
        return processor_class(module, name)(
            size=draw.choice(({"shortest_edge": side()}, {"height": side(), "width": side()}, side())),
            crop_size=draw.choice(({"height": side(), "width": side()}, side())),
            do_center_crop=draw.choice((True, False, None)),
            do_convert_rgb=converts,
            do_resize=draw.random() < 0.9,
            do_normalize=not converts or draw.random() < 0.9,
            resample=draw.randrange(6),
            **options,
        )

    return make


def drawn_gemma3(draw: random.Random) -> Any:
    return processor_class("gemma3", "Gemma3ImageProcessor")(
        size={"height": draw.randrange(16, 260), "width": draw.randrange(16, 260)},
        do_pan_and_scan=draw.random() < 0.9,
        pan_and_scan_min_crop_size=draw.choice((1, 2, 16, 64, 256)),
        pan_and_scan_max_num_crops=draw.randrange(1, 7),
        pan_and_scan_min_ratio_to_activate=draw.choice((1.0, 1.2, 2.0)),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def drawn_idefics3(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        tile = draw.choice((28, 56, 98, 130))
        longest = draw.choice((tile // 2, tile, 2 * tile, 3 * tile + 10, 5 * tile))
        return processor_class(module, name)(
            max_image_size={"longest_edge": tile},
            size=draw.choice(
                ({"longest_edge": longest}, {"height": draw.randrange(9, 300), "width": draw.randrange(9, 300)})
            ),
            do_resize=draw.random() < 0.9,
            do_image_splitting=draw.random() < 0.8,
            do_rescale=draw.random() < 0.9,
            resample=draw.choice((1, 1, 2, 3)),
        )

    return make


def one_sample_each(processor: Any, images: list[Any]) -> dict[str, Any]:
    """Runs a processor that keeps samples apart on images that are one sample each."""
    return dict(processor([[image] for image in images], return_tensors="pt"))


def idefics3_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens of Idefics3's text for images, of which each tile has as many as in the published models."""
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    per_tile = 169 if "Idefics3" in type(processor).__name__ else 64
    counts = []
    for size in sizes:
        made = processor([[Image.new("RGB", size)]], return_row_col_info=True, do_normalize=False, resample=0)
        rows, columns = made["rows"][0][0], made["cols"][0][0]
        text = get_image_prompt_string(rows, columns, per_tile, "<fake>", "<image>", "<global>")
        counts.append(len(re.findall(r"<\w+>|\n+", text)))
    return counts


def gemma3_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens of Gemma 3, 256 for an image and for each of its crops."""
    return [256 * (1 + processor(Image.new("RGB", size), resample=0)["num_crops"][0]) for size in sizes]


def drawn_imagegpt(draw: random.Random) -> Any:
    return processor_class("imagegpt", "ImageGPTImageProcessor")(
        clusters=palette(draw, draw.choice((2, 16, 128, 512))),
        size={"height": draw.randrange(8, 40), "width": draw.randrange(8, 40)},
        do_convert_rgb=draw.random() < 0.8,
        do_color_quantize=draw.random() < 0.9,
        resample=draw.randrange(6),
    )


def palette(draw: random.Random, colours: int) -> list[list[float]]:
    """Returns colours of three numbers in [-1, 1]: anywhere, or on a grid, where many are equally near to a pixel."""
    steps = draw.choice((None, 4, 8, 255))
    if steps is None:
        return [[draw.uniform(-1, 1) for _ in range(3)] for _ in range(colours)]
    return [[draw.randrange(steps + 1) * 2 / steps - 1 for _ in range(3)] for _ in range(colours)]


def published_imagegpt() -> Any:
    return processor_class("imagegpt", "ImageGPTImageProcessor")(
        clusters=palette(random.Random(9), 512), size={"height": 32, "width": 32}, do_convert_rgb=True
    )


def drawn_pixtral(draw: random.Random) -> Any:
    return processor_class("pixtral", "PixtralImageProcessor")(
        size=draw.choice(
            ({"longest_edge": draw.choice((64, 200, 500))}, {"height": draw.randrange(20, 300), "width": 150})
        ),
        patch_size=draw.choice((14, 16, 28, {"height": 8, "width": 12})),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def pixtral_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the tokens of Pixtral, one per patch, and one at the end of each row."""
    patch = processor.patch_size
    height, width = (patch, patch) if isinstance(patch, int) else (patch["height"], patch["width"])
    counts = []
    for size in sizes:
        made = processor(Image.new("RGB", size), resample=0, do_normalize=False)
        rows, columns = made["image_sizes"][0]
        counts.append((rows // height) * (columns // width + 1))
    return counts


def drawn_siglip2(draw: random.Random) -> Any:
    converts = draw.choice((True, True, None))
    return processor_class("siglip2", "Siglip2ImageProcessor")(
        patch_size=draw.choice((8, 14, 16)),
        max_num_patches=draw.choice((1, 7, 64, 256, 576)),
        do_convert_rgb=converts,
        resample=draw.randrange(6),
        do_normalize=not converts or draw.random() < 0.9,
    )


def siglip2_tokens(processor: Any, sizes: Any) -> list[int]:
    """Returns the patches of SigLIP 2."""
    shapes = [processor(Image.new("RGB", size), resample=0)["spatial_shapes"][0] for size in sizes]
    return [rows * columns for rows, columns in shapes]


def published_gemma3() -> Any:
    """Returns Gemma 3's processor with pan and scan, which its caller switches on."""
    return processor_class("gemma3", "Gemma3ImageProcessor")(
        do_pan_and_scan=True,
        pan_and_scan_min_crop_size=256,
        pan_and_scan_max_num_crops=4,
        pan_and_scan_min_ratio_to_activate=1.2,
    )


def published_smolvlm() -> Any:
    """Returns SmolVLM's processor."""
    return processor_class("smolvlm", "SmolVLMImageProcessor")(
        size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}
    )
