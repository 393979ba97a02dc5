"""Images of one size: ViT, CLIP, SigLIP, BLIP and others whose processors resize, crop and normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.pixel_values import Arithmetic
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.resampling import Filter
from energon_dali.errors import ConfigError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)


_SMALLEST_FRACTION = 0.1
"""Of crop_pct: an image is resized to its crop divided by this."""
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
    factor: float = 1 / 255
    """Of each byte ("rescale_factor")."""


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
    "ChameleonImageProcessor": _Default(
        {"shortest_edge": 512},
        (1.0, 1.0, 1.0),
        (1.0, 1.0, 1.0),
        "lanczos",
        {"height": 512, "width": 512},
        True,
        square=False,
        factor=0.0078,
    ),
    "ConvNextImageProcessor": _Default({"shortest_edge": 384}, HALF, HALF, "bicubic", square=False),
    "DeiTImageProcessor": _Default({"height": 256, "width": 256}, HALF, HALF, "bicubic", _SQUARE_224),
    "LevitImageProcessor": _Default(_SHORTEST_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", _SQUARE_224, square=False),
    "MobileNetV1ImageProcessor": _Default({"shortest_edge": 256}, HALF, HALF, "bilinear", _SQUARE_224, square=False),
    "LlavaImageProcessor": _Default(_SHORTEST_224, CLIP_MEAN, CLIP_STD, "bicubic", _SQUARE_224, True, square=False),
    "PoolFormerImageProcessor": _Default(
        _SHORTEST_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", _SQUARE_224, square=False
    ),
    "PPChart2TableImageProcessor": _Default({"height": 1024, "width": 1024}, CLIP_MEAN, CLIP_STD, "bicubic"),
    "PvtImageProcessor": _Default(_SQUARE_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic"),
    "SiglipImageProcessor": _Default(_SQUARE_224, HALF, HALF, "bicubic", None, True, square=False),
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
    """Pixels of a patch's side in the model, which decides the number of tokens. Image processors do not know it."""
    num_additional_image_tokens: int = 0
    """Features of the vision tower next to those of patches, such as its class token."""
    vision_feature_select_strategy: str | None = None
    """"default" drops one feature of an image, the class token; others keep all."""
    background: tuple[int, int, int] | None = None
    """Bytes around an image that is padded to a square before it is resized; None does not pad."""

    family: ClassVar[str] = "fixed_size"
    processors: ClassVar[tuple[str, ...]] = tuple(_DEFAULTS)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"size_divisor"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        default = _DEFAULTS[config.type_name]
        size = config.take_size("size", default.size, square=default.square)
        crop_size = config.take_size("crop_size", default.crop or {}, square=True)
        crops = config.take_flag("do_center_crop", default.crop is not None if default.crops is None else default.crops)
        crop = _pair(crop_size) if crops else None
        if crops and crop is None:
            raise config.error(f"do_center_crop=True needs a height and a width, and crop_size={crop_size}")
        config.require("do_reduce_labels", False, "it changes the pixels of images too")
        pads, pad_size = config.take_flag("do_pad", False), config.take_size("pad_size", {}, square=True)
        squares = pads and config.type_name == "LlavaImageProcessor"
        background = background_color(config, default.mean) if squares else None
        if squares and background is None:
            raise config.error("image_mean is not a colour to pad with: it must be between 0 and 1")
        pair: tuple[int, int] | None = None
        shortest: int | None = None
        if config.type_name == "ConvNextImageProcessor":
            pair, shortest, own_crop = _convnext_size(config, size)
            if own_crop is not None and crop not in (None, own_crop):
                raise config.error(f"crop_size={crop_size} would crop what is already cropped to size={size}")
            crop = own_crop or crop
        elif config.take_flag("do_resize", True):
            pair, shortest = _size(config, size)
            if config.type_name == "LevitImageProcessor" and shortest is not None:
                shortest = int((256 / 224) * shortest)
        if config.type_name == "PoolFormerImageProcessor":
            fraction = config.take_number("crop_pct", 0.9, least=_SMALLEST_FRACTION, most=1)
            if pair is not None or shortest is not None:
                pair, shortest = _before_crop(pair, shortest, fraction)
        if pads and not squares and config.type_name != "BeitImageProcessor":  # which ignores it
            final = crop or pair
            if final is None:
                raise config.error("do_pad=True pads images of several sizes. Give a size or crop_size of both sides")
            if _pair(pad_size) not in (None, final):
                raise config.error(f"pad_size={pad_size} pads images of {final}, which is not supported")
        return cls(
            **config.take_conversion(
                default.mean, default.std, default.filter, rgb=default.convert_rgb, factor=default.factor
            ),
            size=pair,
            shortest_edge=shortest,
            crop=crop,
            background=background,
            **_text_fields(config),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views: tuple[View, ...] = ()
        side = max(height, width)
        if self.background is not None and height != width:
            views = (square_view(height, width, self.background),)
            view = self._finished_view(side, side, source=0)
        else:
            view = self._finished_view(height, width)
        if self.patch_size is None:
            return ImageLayout(height, width, (*views, view), 0, (0, 0))
        rows, columns = (length // self.patch_size for length in view.canvas_size)
        tokens = rows * columns + self.num_additional_image_tokens
        if self.vision_feature_select_strategy == "default":
            tokens -= 1
        return ImageLayout(height, width, (*views, view), tokens, (rows, columns))

    def _finished_view(self, height: int, width: int, **fields: Any) -> View:
        return cropped_view(
            *resized_size(height, width, self.size, self.shortest_edge), self.crop, by=self.values.arithmetic, **fields
        )

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {}


def require_one_size(images: Sequence[VisionInput]) -> None:
    """Checks that images can be stacked.

    Raises:
        ConfigError: Their sizes differ.
    """
    sizes = {image.layout.views[-1].tile_size[::-1] for image in images}
    if len(sizes) > 1:
        shown = ", ".join(f"{width} x {height}" for width, height in sorted(sizes)[:4])
        raise ConfigError(
            f"Images of different sizes cannot form one batch: {shown} pixels (width x height). This processor "
            "neither resizes to one size nor crops to one. Give it a crop_size, or batch equal sizes together."
        )


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
    fraction = config.take_number("crop_pct", 224 / 256, least=_SMALLEST_FRACTION, most=1)
    if not config.take_flag("do_resize", True):
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


def _text_fields(config: ProcessorConfig) -> dict[str, Any]:
    """Returns the fields that LLaVA's processor has: by them the model's features become tokens."""
    if config.outer.get("processor_class") != "LlavaProcessor":
        return {}
    token = {"image_token": config.outer_text("image_token", FixedSize.image_token)}
    if "patch_size" not in config.outer:  # saved before the processor had it; the values of the published models
        strategy = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
        return {**strategy, **token}
    return {
        "patch_size": config.outer_integer("patch_size", 14, least=1),
        "num_additional_image_tokens": config.outer_integer("num_additional_image_tokens", 0),
        "vision_feature_select_strategy": config.outer_strategy(),
        **token,
    }


def background_color(
    config: ProcessorConfig, mean: tuple[float, ...], name: str = "image_mean"
) -> tuple[int, int, int] | None:
    """Returns the bytes of image_mean, with which LLaVA's processors pad images to squares.

    Args:
        config: Of the processor.
        mean: Default of image_mean.
        name: Of the value, if it is another one.

    Returns:
        (red, green, blue), or None if they are not bytes: the processor fails when it pads.
    """
    given = config.take_triple(name, mean, least=-math.inf)
    red, green, blue = (int(value * 255) for value in given)
    return (red, green, blue) if min(red, green, blue) >= 0 and max(red, green, blue) <= 255 else None


def square_view(height: int, width: int, fill: tuple[int, int, int]) -> View:
    """Returns an image in the middle of a square of its longer side, as a source of other views."""
    side = max(height, width)
    position = ((side - height) // 2, (side - width) // 2)
    return View(height, width, canvas=(side, side), position=position, fill=fill, emitted=False)


def resized_size(height: int, width: int, size: tuple[int, int] | None, shortest_edge: int | None) -> tuple[int, int]:
    """Returns (height, width) after resizing to a size, or the shorter side to a length; unchanged without either."""
    if size is not None:
        return size
    if shortest_edge is None:
        return height, width
    longer = int(shortest_edge * max(height, width) / min(height, width))
    return (shortest_edge, longer) if height <= width else (longer, shortest_edge)


def cropped_view(
    height: int, width: int, crop: tuple[int, int] | None, *, by: Arithmetic = "pil", **fields: Any
) -> View:
    """Returns the view of a resized image whose centre is cut out.

    Args:
        height: Of the resized image.
        width: Likewise.
        crop: (height, width) of the centre; None keeps all.
        by: Whose rounding: that of transformers' PIL backend, or of its torchvision backend. They differ where a crop
            is larger than the image.
        **fields: Further fields of the view.
    """
    if crop is None or crop == (height, width):
        return View(height, width, **fields)
    if by == "torch":
        position = tuple(
            (wanted - side) // 2 if wanted > side else -((side - wanted) // 2)
            for side, wanted in zip((height, width), crop, strict=True)
        )
        return View(height, width, canvas=crop, position=(position[0], position[1]), **fields)
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
