"""Makes processors of vision models: those that resize by a rule, pad batches, or follow boxes and masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.decode.front_ends.case import Case
from tests.decode.front_ends.mixed_cases import processor_class

RESIZED = {
    "DPT": ("dpt", "DPTImageProcessor"),
    "EfficientNet": ("efficientnet", "EfficientNetImageProcessor"),
    "FLAVA": ("flava", "FlavaImageProcessor"),
    "GLPN": ("glpn", "GLPNImageProcessor"),
    "OWL-ViT": ("owlvit", "OwlViTImageProcessor"),
    "LayoutLMv2": ("layoutlmv2", "LayoutLMv2ImageProcessor"),
    "LayoutLMv3": ("layoutlmv3", "LayoutLMv3ImageProcessor"),
    "MobileNet V2": ("mobilenet_v2", "MobileNetV2ImageProcessor"),
    "MobileViT": ("mobilevit", "MobileViTImageProcessor"),
    "Perceiver": ("perceiver", "PerceiverImageProcessor"),
    "SegFormer": ("segformer", "SegformerImageProcessor"),
    "SuperPoint": ("superpoint", "SuperPointImageProcessor"),
    "TextNet": ("textnet", "TextNetImageProcessor"),
}
"""Module and class by name of the case."""
_PUBLISHED: dict[str, dict[str, Any]] = {
    "dpt": {"size": {"height": 518, "width": 518}, "keep_aspect_ratio": True, "ensure_multiple_of": 14},
    "layoutlmv2": {"apply_ocr": False},
    "layoutlmv3": {"apply_ocr": False},
}
"""Values of published models (of DPT: Depth Anything), or those without which a front end is refused."""
_WITHOUT_NORMALIZATION = ("glpn", "layoutlmv2", "mobilevit", "superpoint")


def published_resized(module: str, name: str) -> Callable[[], Any]:
    return lambda: processor_class(module, name)(do_convert_rgb=True, **_PUBLISHED.get(module, {}))


def drawn_size(draw: random.Random, *, least: int = 8, most: int = 260) -> dict[str, int]:
    """Returns a size of one of the kinds that most processors take."""
    one, two = draw.randrange(least, most), draw.randrange(least, most)
    return draw.choice(
        (
            {"shortest_edge": one},
            {"height": one, "width": two},
            {"shortest_edge": min(one, two), "longest_edge": max(one, two)},
            {"max_height": one, "max_width": two},
        )
    )


def _sides(draw: random.Random, most: int = 260) -> dict[str, int]:
    return {"height": draw.randrange(8, most), "width": draw.randrange(8, most)}


def _own_options(draw: random.Random, module: str) -> dict[str, Any]:
    """Returns the values that processors of one module have."""
    if module == "dpt":
        return {
            "size": _sides(draw),
            "ensure_multiple_of": draw.choice((1, 4, 14, 32)),
            "keep_aspect_ratio": draw.random() < 0.5,
            "do_pad": draw.random() < 0.5,
            "size_divisor": draw.choice((None, 8, 30)),
        }
    if module == "efficientnet":
        return {"rescale_offset": draw.random() < 0.5, "include_top": draw.random() < 0.6}
    if module == "flava":
        return {"codebook_size": _sides(draw), "codebook_do_resize": draw.random() < 0.5}
    if module == "glpn":
        given = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
        return {"size_divisor": draw.choice((1, 4, 8, 16)), **draw.choice((given, {"do_normalize": False}))}
    if module in ("layoutlmv2", "layoutlmv3"):
        normalizes = module == "layoutlmv3" and draw.random() < 0.7
        options = {"apply_ocr": False, "do_center_crop": False, "do_normalize": normalizes, "do_convert_rgb": True}
        return options | ({"do_rescale": False} if module == "layoutlmv2" else {})
    if module == "mobilevit":
        return {"do_flip_channel_order": draw.random() < 0.7}
    if module == "perceiver":
        return {"size": _sides(draw)}
    if module == "superpoint":
        return {"do_normalize": None}
    if module == "textnet":
        return {"size": {"shortest_edge": draw.randrange(8, 200)}, "size_divisor": draw.choice((1, 8, 32, 40))}
    return {"do_reduce_labels": draw.random() < 0.5} if module in ("mobilenet_v2", "segformer") else {}


def drawn_resized(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        # Without normalisation the processors accept any number of channels, which no model does.
        converts = True if module in _WITHOUT_NORMALIZATION else draw.choice((True, True, None))
        options: dict[str, Any] = {
            "size": drawn_size(draw),
            "crop_size": _sides(draw),
            "do_center_crop": draw.choice((True, False, None)),
            "do_convert_rgb": converts,
            "do_resize": draw.random() < 0.9,
            "do_rescale": draw.random() < 0.9,
            "do_normalize": not converts or draw.random() < 0.9,
            "resample": draw.randrange(6),
            "pad_size": _sides(draw),
        }
        return processor_class(module, name)(**{**options, **_own_options(draw, module)})

    return make


PADDED = {
    "BridgeTower": ("bridgetower", "BridgeTowerImageProcessor"),
    "Conditional DETR": ("conditional_detr", "ConditionalDetrImageProcessor"),
    "Deformable DETR": ("deformable_detr", "DeformableDetrImageProcessor"),
    "DETR": ("detr", "DetrImageProcessor"),
    "Grounding DINO": ("grounding_dino", "GroundingDinoImageProcessor"),
    "Mask2Former": ("mask2former", "Mask2FormerImageProcessor"),
    "MaskFormer": ("maskformer", "MaskFormerImageProcessor"),
    "OneFormer": ("oneformer", "OneFormerImageProcessor"),
    "RT-DETR": ("rt_detr", "RTDetrImageProcessor"),
    "ViLT": ("vilt", "ViltImageProcessor"),
    "YOLOS": ("yolos", "YolosImageProcessor"),
}
"""Processors that pad the images of a batch."""
_WITH_TEXT = ("bridgetower", "vilt")
_MASKERS = ("mask2former", "maskformer")


def published_padded(module: str, name: str) -> Callable[[], Any]:
    return lambda: processor_class(module, name)(do_convert_rgb=True)


def drawn_padded(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        converts = draw.choice((True, True, None))
        edge = draw.randrange(8, 120)
        size = drawn_size(draw, most=150)
        while size.keys() == {"shortest_edge"} and module != "oneformer":
            size = drawn_size(draw, most=150)
        options: dict[str, Any] = {
            "size": {"shortest_edge": edge} if module in _WITH_TEXT else size,
            "crop_size": {"shortest_edge": draw.randrange(8, 150)} if module in _WITH_TEXT else _sides(draw),
            "do_center_crop": draw.random() < 0.5,
            "do_convert_rgb": converts,
            "do_resize": draw.random() < 0.9,
            "do_rescale": draw.random() < 0.9,
            "do_normalize": not converts or draw.random() < 0.9,
            "do_pad": draw.random() < 0.8,
            "resample": draw.randrange(6),
        }
        if module in _WITH_TEXT or module in _MASKERS:
            options["size_divisor"] = draw.choice((1, 8, 32))
        if module not in _WITH_TEXT and module != "oneformer" and draw.random() < 0.2:
            options["pad_size"] = {"height": draw.randrange(100, 900), "width": draw.randrange(100, 900)}
        if (module in _MASKERS and draw.random() < 0.2) or (module in ("detr", "yolos") and draw.random() < 0.2):
            options.update(size=edge, max_size=edge + draw.randrange(100))
        return processor_class(module, name)(**options)

    return make


TORCHVISION = {
    "DepthPro": ("depth_pro", "DepthProImageProcessor"),
    "DINOv3": ("dinov3_vit", "DINOv3ViTImageProcessor"),
    "PI0": ("pi0", "PI0ImageProcessor"),
    "SAM 2": ("sam2", "Sam2ImageProcessor"),
    "SAM 3": ("sam3", "Sam3ImageProcessor"),
    "TIPS v2": ("tipsv2", "Tipsv2ImageProcessor"),
    "TIPS v2 DPT": ("tipsv2_dpt", "Tipsv2DptImageProcessor"),
}
"""Processors that have the torchvision backend alone."""


def torchvision_class(module: str, name: str) -> Any:
    return getattr(import_module(f"transformers.models.{module}.image_processing_{module}"), name)


def drawn_by_torchvision(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        options: dict[str, Any] = {
            "size": drawn_size(draw),
            "crop_size": _sides(draw),
            "do_center_crop": draw.random() < 0.3,
            "do_convert_rgb": True,
            "do_resize": draw.random() < 0.9,
            "do_rescale": draw.random() < 0.9,
            "resample": draw.choice((0, 2, 3)),
        }
        if module == "pi0":
            one, two = draw.randrange(8, 200), draw.randrange(8, 200)
            options |= {"size": {"max_height": one, "max_width": two}, "do_center_crop": False, "do_resize": True}
            options["pad_size"] = {"height": one + draw.randrange(40), "width": two + draw.randrange(40)}
        if module in ("depth_pro", "dinov3_vit"):
            options |= {"do_rescale": True, "do_normalize": draw.random() < 0.8}
        if module.startswith("sam"):
            options |= {"do_normalize": draw.random() < 0.8, "mask_size": _sides(draw)}
        return torchvision_class(module, name)(**options)

    return make


def drawn_sam(draw: random.Random) -> Any:
    longest = draw.randrange(8, 300)
    side = longest + draw.randrange(60)
    return processor_class("sam", "SamImageProcessor")(
        size={"longest_edge": longest},
        pad_size={"height": side, "width": side - draw.randrange(-9, 30)},
        do_pad=draw.random() < 0.8,
        do_resize=draw.random() < 0.9,
        do_normalize=draw.random() < 0.8,
        resample=draw.randrange(6),
        mask_size={"longest_edge": 32},
    )


ALWAYS_RESCALED = ("OWLv2", "ZoeDepth")
"""Cases whose front ends refuse do_rescale=False: the processors would resample bytes, not values."""
PAGES = {"Donut": ("donut", "DonutImageProcessor"), "Nougat": ("nougat", "NougatImageProcessor")}


def drawn_page(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        options: dict[str, Any] = {
            "size": _sides(draw, 200),
            "do_align_long_axis": draw.random() < 0.5,
            "do_thumbnail": draw.random() < 0.9,
            "do_pad": draw.random() < 0.9,
            "do_resize": draw.random() < 0.9,
            "do_convert_rgb": draw.choice((True, None)),
            "resample": draw.randrange(6),
        }
        if module == "nougat":
            crops = draw.random() < 0.8
            options |= {"do_crop_margin": crops} | ({"do_thumbnail": True, "do_pad": True} if crops else {})
        return processor_class(module, name)(**options)

    return make


def drawn_owlv2(draw: random.Random) -> Any:
    return processor_class("owlv2", "Owlv2ImageProcessor")(
        size=_sides(draw, 120),
        do_pad=draw.random() < 0.8,
        do_resize=draw.random() < 0.9,
        do_normalize=draw.random() < 0.8,
    )


def drawn_pix2struct(draw: random.Random) -> Any:
    return processor_class("pix2struct", "Pix2StructImageProcessor")(
        patch_size={"height": draw.choice((8, 14, 16)), "width": draw.choice((8, 14, 16))},
        max_patches=draw.choice((1, 7, 64, 256, 576)),
        do_normalize=draw.random() < 0.8,
        do_convert_rgb=True,
    )


def drawn_zoedepth(draw: random.Random) -> Any:
    return processor_class("zoedepth", "ZoeDepthImageProcessor")(
        size=_sides(draw),
        do_pad=draw.random() < 0.8,
        do_resize=draw.random() < 0.9,
        keep_aspect_ratio=draw.random() < 0.5,
        ensure_multiple_of=draw.choice((1, 16, 32, 1 / 32)),
        do_normalize=True,
        do_convert_rgb=True,
        resample=draw.choice((2, 3)),
    )


FRAMES = {"VideoMAE frames": ("videomae", "VideoMAEImageProcessor"), "ViViT frames": ("vivit", "VivitImageProcessor")}
"""Processors of videos that are stored as images."""


def drawn_frames(module: str, name: str) -> Callable[[random.Random], Any]:
    def make(draw: random.Random) -> Any:
        rescales = draw.random() < 0.9
        options: dict[str, Any] = {
            "size": draw.choice(({"shortest_edge": draw.randrange(8, 260)}, _sides(draw))),
            "crop_size": _sides(draw),
            "do_center_crop": draw.random() < 0.9,
            "do_resize": draw.random() < 0.9,
            "do_rescale": rescales,
            "resample": draw.randrange(6),
        }
        if module == "vivit":
            options["offset"] = rescales and draw.random() < 0.7
        else:
            options["do_convert_rgb"] = draw.choice((True, None))
        return frames_processor(module, name, **options)

    return make


def frames_processor(module: str, name: str, **options: Any) -> Any:
    made = torchvision_class(module, name) if module == "vivit" else processor_class(module, name)
    return made(**options)


def run_frames(processor: Any, images: list[Any]) -> dict[str, Any]:
    """Runs a processor of videos on videos of one frame; one that cannot tell channels from rows receives their
    order."""
    options = {"input_data_format": "channels_last"} if type(processor).__name__ == "VivitImageProcessor" else {}
    return dict(processor([[image] for image in images], return_tensors="pt", **options))


CASES = (
    *(
        Case(name, drawn_resized(*where), published_resized(*where), largest_ratio=30, slow=True)
        for name, where in RESIZED.items()
    ),
    *(
        Case(name, drawn_padded(*where), published_padded(*where), largest_ratio=30, slow=True)
        for name, where in PADDED.items()
    ),
    *(
        Case(
            name,
            drawn_by_torchvision(*where),
            lambda where=where: torchvision_class(*where)(do_convert_rgb=True),  # type: ignore[misc]
            largest_ratio=30,
            torchvision=True,
        )
        for name, where in TORCHVISION.items()
    ),
    *(
        Case(
            name,
            drawn_frames(*where),
            lambda where=where: frames_processor(*where),  # type: ignore[misc]
            call=run_frames,
            largest_ratio=30,
            slow=True,
        )
        for name, where in FRAMES.items()
    ),
    *(
        Case(
            name,
            drawn_page(*where),
            lambda where=where: processor_class(*where)(do_convert_rgb=True),  # type: ignore[misc]
            largest_ratio=30,
            slow=True,
        )
        for name, where in PAGES.items()
    ),
    Case(
        "OWLv2",
        drawn_owlv2,
        lambda: processor_class("owlv2", "Owlv2ImageProcessor")(),
        largest=300,
        largest_ratio=30,
        slow=True,
    ),
    Case(
        "Pix2Struct", drawn_pix2struct, lambda: processor_class("pix2struct", "Pix2StructImageProcessor")(), slow=True
    ),
    Case(
        "ZoeDepth",
        drawn_zoedepth,
        lambda: processor_class("zoedepth", "ZoeDepthImageProcessor")(do_convert_rgb=True, ensure_multiple_of=32),
        largest_ratio=30,
        slow=True,
    ),
    Case("SAM", drawn_sam, lambda: processor_class("sam", "SamImageProcessor")(), largest_ratio=110, slow=True),
)
