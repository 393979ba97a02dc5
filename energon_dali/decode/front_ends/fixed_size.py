"""Images of one size: ViT, CLIP, SigLIP, BLIP and others whose processors resize, crop and normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.vision_input import VisionInput
from energon_dali.errors import ConfigError

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
    square: bool = True
    """Whether a size of one number is height and width; if not, it is the shortest edge."""
    crops: bool | None = None
    """Whether it crops; None: if there is a size for it."""


_SHORTEST_224 = {"shortest_edge": 224}
_SQUARE_224 = {"height": 224, "width": 224}
_DEFAULTS = {
    "BeitImageProcessor": _Default(_SQUARE_224, HALF, HALF, "bicubic", _SQUARE_224, crops=False),
    "BitImageProcessor": _Default(_SHORTEST_224, CLIP_MEAN, CLIP_STD, "bicubic", _SQUARE_224, True, square=False),
    "BlipImageProcessor": _Default({"height": 384, "width": 384}, CLIP_MEAN, CLIP_STD, "bicubic", None, True),
    "CLIPImageProcessor": _Default(_SHORTEST_224, CLIP_MEAN, CLIP_STD, "bicubic", _SQUARE_224, True, square=False),
    "ChineseCLIPImageProcessor": _Default(
        _SHORTEST_224, CLIP_MEAN, CLIP_STD, "bicubic", _SQUARE_224, True, square=False
    ),
    "ConvNextImageProcessor": _Default({"shortest_edge": 384}, HALF, HALF, "bicubic", square=False),
    "DeiTImageProcessor": _Default({"height": 256, "width": 256}, HALF, HALF, "bicubic", _SQUARE_224),
    "LevitImageProcessor": _Default(_SHORTEST_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", _SQUARE_224, square=False),
    "MobileNetV1ImageProcessor": _Default({"shortest_edge": 256}, HALF, HALF, "bilinear", _SQUARE_224, square=False),
    "PoolFormerImageProcessor": _Default(
        _SHORTEST_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", _SQUARE_224, square=False
    ),
    "PvtImageProcessor": _Default(_SQUARE_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic"),
    "SiglipImageProcessor": _Default(_SQUARE_224, HALF, HALF, "bicubic", None, True),
    "ViTImageProcessor": _Default(_SQUARE_224, HALF, HALF, "bilinear"),
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
        square = bool(config.take("default_to_square", default.square))
        size = config.take_size("size", default.size, square=square)
        crop_size = config.take_size("crop_size", default.crop or {}, square=True)
        crops = bool(
            config.take("do_center_crop", default.crop is not None if default.crops is None else default.crops)
        )
        crop = _pair(crop_size) if crops else None
        if crops and crop is None:
            raise config.error(f"crop_size={crop_size} is not a height and a width")
        config.require("do_reduce_labels", False, "it changes the pixels of images too")
        config.require("do_pad", False, "images of one size need no padding")
        pair: tuple[int, int] | None = None
        shortest: int | None = None
        if config.type_name == "ConvNextImageProcessor":
            pair, shortest, own_crop = _convnext_size(config, size)
            if own_crop is not None and crop not in (None, own_crop):
                raise config.error(f"crop_size={crop_size} would crop what is already cropped to size={size}")
            crop = own_crop or crop
        elif config.take("do_resize", True):
            pair, shortest = _size(config, size)
            if config.type_name == "LevitImageProcessor" and shortest is not None:
                shortest = int((256 / 224) * shortest)
            elif config.type_name == "PoolFormerImageProcessor":
                pair, shortest = _before_crop(pair, shortest, float(config.take("crop_pct", 0.9)))
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

        images = [image for sample in samples for image in sample]
        sizes = {(image.values.shape[3], image.values.shape[2]) for image in images}
        if len(sizes) > 1:
            shown = ", ".join(f"{width} x {height}" for width, height in sorted(sizes)[:4])
            raise ConfigError(
                f"Images of different sizes cannot form one batch: {shown} pixels (width x height). This processor "
                "neither resizes to one size nor crops to one. Give it a crop_size, or batch equal sizes together."
            )
        return {"pixel_values": torch.cat([image.values for image in images])}


def _size(config: ProcessorConfig, size: dict[str, int]) -> tuple[tuple[int, int] | None, int | None]:
    """Returns ((height, width), shortest edge), one of them None."""
    if size.keys() == {"shortest_edge"}:
        return None, size["shortest_edge"]
    if size.keys() == {"height", "width"}:
        return _pair(size), None
    raise config.error(f"size={size} is neither a height and a width nor a shortest_edge")


def _convnext_size(
    config: ProcessorConfig, size: dict[str, int]
) -> tuple[tuple[int, int] | None, int | None, tuple[int, int] | None]:
    """Returns ((height, width), shortest edge, crop)."""
    fraction = float(config.take("crop_pct", 224 / 256))
    if not config.take("do_resize", True):
        return None, None, None
    shortest = size.get("shortest_edge")
    if shortest is None:
        raise config.error(f"size={size} has no shortest_edge")
    if shortest < _CONVNEXT_CROPS_BELOW:
        return None, int(shortest / fraction), (shortest, shortest)
    return (shortest, shortest), None, None


def _before_crop(
    pair: tuple[int, int] | None, shortest: int | None, fraction: float
) -> tuple[tuple[int, int] | None, int | None]:
    """Returns ((height, width), shortest edge) of which a crop is this fraction, as PoolFormer's processor does it."""
    if pair is not None and pair[0] != pair[1]:
        return (int(pair[0] / fraction), int(pair[1] / fraction)), None
    return None, int((pair[0] if pair is not None else shortest or 0) / fraction)


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
