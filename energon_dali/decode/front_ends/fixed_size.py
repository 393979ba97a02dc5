"""Images of one size: ViT, DeiT, CLIP, SigLIP, ConvNeXt and all processors that resize, crop and normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.vision_input import VisionInput

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.processor_config import ProcessorConfig
    from energon_dali.decode.front_ends.resampling import Filter

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)


_CONVNEXT_CROPS_BELOW = 384
"""From this size on, ConvNeXt's processor resizes to a square and does not crop."""


@dataclass(frozen=True, slots=True)
class _Default:
    """What a processor does where its file does not say."""

    size: dict[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filter: Filter
    crop: dict[str, int] | None = None
    convert_rgb: bool = False


_DEFAULTS = {
    "CLIPImageProcessor": _Default(
        {"shortest_edge": 224}, CLIP_MEAN, CLIP_STD, "bicubic", {"height": 224, "width": 224}, True
    ),
    "ConvNextImageProcessor": _Default({"shortest_edge": 384}, IMAGENET_MEAN, IMAGENET_STD, "bilinear"),
    "DeiTImageProcessor": _Default(
        {"height": 256, "width": 256}, IMAGENET_MEAN, IMAGENET_STD, "bicubic", {"height": 224, "width": 224}
    ),
    "SiglipImageProcessor": _Default({"height": 224, "width": 224}, HALF, HALF, "bicubic", None, True),
    "ViTImageProcessor": _Default({"height": 224, "width": 224}, HALF, HALF, "bilinear"),
}


@dataclass(frozen=True, kw_only=True)
class FixedSize(FrontEnd):
    """Resizes to a size, or the shorter edge to one, and crops the centre. Values: dtype[1, 3, height, width]."""

    size: tuple[int, int] | None = None
    """(height, width) of the resized image; None with `shortest_edge`, or without resizing."""
    shortest_edge: int | None = None
    """Length of the shorter side of the resized image, with the aspect ratio kept (the longer one rounded down)."""
    crop: tuple[int, int] | None = None
    """(height, width) of the centre that is cut out after resizing, with black around images that are smaller."""
    patch_size: int | None = None
    """Pixels of a patch's side in the model, which decides the number of tokens. Processors do not know it."""

    family: ClassVar[str] = "fixed_size"
    processors: ClassVar[tuple[str, ...]] = tuple(_DEFAULTS)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        default = _DEFAULTS[config.type_name]
        size = config.take_size("size", default.size)
        crop_size = config.take_size("crop_size", default.crop or {})
        crops = bool(config.take("do_center_crop", default.crop is not None))
        crop = _pair(crop_size) if crops else None
        if crops and crop is None:
            raise config.error(f"crop_size={crop_size} is not a height and a width")
        shortest, pair = size.get("shortest_edge"), _pair(size)
        if config.type_name == "ConvNextImageProcessor":
            fraction = float(config.take("crop_pct", 224 / 256))
            if shortest is None:
                raise config.error(f"size={size} has no shortest_edge")
            if shortest < _CONVNEXT_CROPS_BELOW:
                crop, shortest, pair = (shortest, shortest), int(shortest / fraction), None
            else:
                pair, shortest = (shortest, shortest), None
        if not config.take("do_resize", True):
            shortest = pair = None
        elif (shortest is None) == (pair is None):
            raise config.error(f"size={size} is neither a height and a width nor a shortest_edge")
        return cls(
            values=config.take_values(mean=default.mean, std=default.std),
            filter=config.take_filter(default.filter),
            convert_rgb=bool(config.take("do_convert_rgb", default.convert_rgb)),
            size=pair,
            shortest_edge=shortest,
            crop=crop,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        view = cropped_view(*resized_size(height, width, self.size, self.shortest_edge), self.crop)
        rows, columns = (0, 0)
        if self.patch_size is not None:
            rows, columns = (side // self.patch_size for side in view.canvas_size)
        return ImageLayout(height, width, (view,), rows * columns, (rows, columns))

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        return {"pixel_values": torch.cat([image.values for sample in samples for image in sample])}


def _pair(size: dict[str, int]) -> tuple[int, int] | None:
    return (size["height"], size["width"]) if {"height", "width"} <= size.keys() else None


def resized_size(height: int, width: int, size: tuple[int, int] | None, shortest_edge: int | None) -> tuple[int, int]:
    """Returns (height, width) after resizing to a size, or the shorter side to a length; unchanged without either."""
    if size is not None:
        return size
    if shortest_edge is None:
        return height, width
    longer = int(shortest_edge * max(height, width) / min(height, width))
    return (shortest_edge, longer) if height <= width else (longer, shortest_edge)


def cropped_view(height: int, width: int, crop: tuple[int, int] | None, **fields: Any) -> View:
    """Returns the view of a resized image whose centre is cut out.

    Args:
        height: Of the resized image.
        width: Likewise.
        crop: (height, width) of the centre; None keeps all.
        **fields: Further fields of the view.
    """
    if crop is None or crop == (height, width):
        return View(height, width, **fields)
    return View(height, width, canvas=crop, position=_centre((height, width), crop), **fields)


def _centre(size: tuple[int, int], crop: tuple[int, int]) -> tuple[int, int]:
    """Returns (top, left) of an image on the canvas of its centre crop, as transformers' PIL backend places it."""
    top, left = ((side - wanted) // 2 for side, wanted in zip(size, crop, strict=True))
    if top >= 0 and left >= 0 and top + crop[0] <= size[0] and left + crop[1] <= size[1]:
        return -top, -left
    # Too small: the image is put into the middle of a canvas that is at least as large, from which the crop is cut.
    around = tuple(max(wanted, side) for side, wanted in zip(size, crop, strict=True))
    offset = tuple(math.ceil((outer - side) / 2) for outer, side in zip(around, size, strict=True))
    return offset[0] - max(0, top + offset[0]), offset[1] - max(0, left + offset[1])
