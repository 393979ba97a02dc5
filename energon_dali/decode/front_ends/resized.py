"""Images resized by a rule, for vision models: SegFormer, MobileNet V2, MobileViT, EfficientNet, DPT and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    cropped_view,
    require_one_size,
)
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import IMAGE, ImageLayout, View
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.processor_config import LARGEST_SIDE, SMALLEST_FACTOR, ProcessorConfig
from energon_dali.decode.front_ends.resampling import Filter, Pixels
from energon_dali.decode.front_ends.resize_rules import (
    ResizeRule,
    ToMultiples,
    ToNearestMultiples,
    ToShortestEdge,
    checked_size,
    take_rule,
)
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

_CROP = ("do_center_crop", "crop_size")
_PAD = ("do_pad", "pad_size")
_TESSERACT = ("ocr_lang", "tesseract_config")


@dataclass(frozen=True, slots=True)
class _Processor:
    """What a processor does where its file does not say, and which keys it does not read."""

    size: dict[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filter: Filter
    unused: tuple[str, ...]
    _: KW_ONLY
    square: bool = True
    """Whether a size of one number is height and width; if not, it is the shortest edge."""
    crop: dict[str, int] | None = None
    """Default of crop_size, if it crops."""
    crops: bool = False
    convert_rgb: bool = False
    steps: Literal["all", "rescale", "none"] = "all"
    """What it does to bytes: rescales and normalises, rescales, or neither."""
    rule: Callable[[ProcessorConfig, dict[str, int]], ResizeRule | None] | None = None
    """Takes a rule of another kind than that of a size."""
    refused: tuple[tuple[str, bool, str], ...] = ()
    """Flags that must be off, their defaults, and why."""


def _textnet_rule(config: ProcessorConfig, default: dict[str, int]) -> ResizeRule | None:
    size = config.take_size("size", default)
    divisor = config.take_integer("size_divisor", 32, most=LARGEST_SIDE)
    if not config.take_flag("do_resize", True):
        return None
    if size.keys() != {"shortest_edge"}:
        raise config.error(f"size={size} has no shortest_edge, or more")
    return ToShortestEdge(size["shortest_edge"], divisor)


def _dpt_rule(config: ProcessorConfig, default: dict[str, int]) -> ResizeRule | None:
    height, width = config.height_and_width("size", config.take_size("size", default, square=True))
    multiple = config.take_integer("ensure_multiple_of", 1, most=LARGEST_SIDE)
    keeps = config.take_flag("keep_aspect_ratio", False)
    return ToNearestMultiples(height, width, multiple, keeps) if config.take_flag("do_resize", True) else None


def _glpn_rule(config: ProcessorConfig, default: dict[str, int]) -> ResizeRule | None:
    multiple = config.take_integer("size_divisor", 32, most=LARGEST_SIDE)
    return ToMultiples(multiple) if config.take_flag("do_resize", True) else None


_SQUARE_224 = {"height": 224, "width": 224}
_OCR = ("apply_ocr", True, "a front end gives pixels, and no words that Tesseract reads")
_NORMALIZATION = ("do_normalize", "image_mean", "image_std")
_CONVERSION = ("do_rescale", "rescale_factor", *_NORMALIZATION)
_FLAVA_UNUSED = (
    *("input_size_patches", "total_mask_patches", "mask_group_min_patches", "mask_group_max_patches"),
    *("mask_group_min_aspect_ratio", "mask_group_max_aspect_ratio", *_PAD, "codebook_do_map_pixels"),
    *(f"codebook_{name}" for name in ("do_resize", "size", "resample", *_CROP, *_CONVERSION)),
)
_NO_PADDING = ("do_pad", False, "images are of one size already")
_SAM2_UNUSED = ("mask_size", "mask_pad_size", "pad_size")
_PROCESSORS = {
    "DPTImageProcessor": _Processor(
        {"height": 384, "width": 384},
        *(HALF, HALF, "bicubic", ("do_reduce_labels", *_CROP, "pad_size")),
        rule=_dpt_rule,
    ),
    "EfficientNetImageProcessor": _Processor(
        {"height": 346, "width": 346}, HALF, HALF, "bicubic", _PAD, crop={"height": 289, "width": 289}
    ),
    "FlavaImageProcessor": _Processor(
        _SQUARE_224,
        *(CLIP_MEAN, CLIP_STD, "bicubic", _FLAVA_UNUSED),
        crop=_SQUARE_224,
        crops=True,
        refused=(
            ("return_codebook_pixels", False, "a front end gives pixel_values alone"),
            ("return_image_mask", False, "it is drawn by chance; draw it from what the front end gives"),
        ),
    ),
    "GLPNImageProcessor": _Processor(
        {}, HALF, HALF, "bilinear", (*_CROP, *_PAD, "size", "default_to_square"), rule=_glpn_rule
    ),
    "LayoutLMv2ImageProcessor": _Processor(
        _SQUARE_224,
        *(HALF, HALF, "bilinear", (*_CONVERSION, *_CROP, *_PAD, *_TESSERACT)),
        steps="none",
        refused=(_OCR,),
    ),
    "LayoutLMv3ImageProcessor": _Processor(
        _SQUARE_224,
        *(HALF, HALF, "bilinear", (*_PAD, "crop_size", *_TESSERACT)),
        refused=(_OCR, ("do_center_crop", False, "transformers fails to crop with this processor")),
    ),
    "MobileNetV2ImageProcessor": _Processor(
        {"shortest_edge": 256},
        *(HALF, HALF, "bilinear", ("do_reduce_labels", *_PAD)),
        square=False,
        crop=_SQUARE_224,
        crops=True,
    ),
    "MobileViTImageProcessor": _Processor(
        {"shortest_edge": 224},
        *(HALF, HALF, "bicubic", ("do_reduce_labels", *_NORMALIZATION, *_PAD)),
        square=False,
        crop={"height": 256, "width": 256},
        crops=True,
        steps="rescale",
    ),
    "OwlViTImageProcessor": _Processor(
        {"height": 768, "width": 768},
        *(CLIP_MEAN, CLIP_STD, "bicubic", ("pad_size",)),
        crop={"height": 768, "width": 768},
        convert_rgb=True,
        refused=(_NO_PADDING,),
    ),
    "PI0ImageProcessor": _Processor(
        {"max_height": 224, "max_width": 224}, HALF, HALF, "bicubic", ("image_seq_length",), convert_rgb=True, crop={}
    ),
    "PerceiverImageProcessor": _Processor(
        _SQUARE_224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", _PAD, crop={"height": 256, "width": 256}, crops=True
    ),
    "Sam2ImageProcessor": _Processor(
        {"height": 1024, "width": 1024},
        *(IMAGENET_MEAN, IMAGENET_STD, "bilinear", _SAM2_UNUSED),
        crop={},
        convert_rgb=True,
        refused=(_NO_PADDING,),
    ),
    "Sam3ImageProcessor": _Processor(
        {"height": 1008, "width": 1008},
        *(HALF, HALF, "bilinear", _SAM2_UNUSED),
        crop={},
        convert_rgb=True,
        refused=(_NO_PADDING,),
    ),
    "SegformerImageProcessor": _Processor(
        {"height": 512, "width": 512},
        *(IMAGENET_MEAN, IMAGENET_STD, "bilinear", ("do_reduce_labels", "reduce_labels", *_CROP, *_PAD)),
    ),
    "SuperPointImageProcessor": _Processor(
        {"height": 480, "width": 640},
        *(HALF, HALF, "bilinear", (*_NORMALIZATION, *_CROP, *_PAD)),
        square=False,
        steps="rescale",
        refused=(("do_grayscale", False, "it mixes the values of channels"),),
    ),
    "TextNetImageProcessor": _Processor(
        {"shortest_edge": 640},
        *(IMAGENET_MEAN, IMAGENET_STD, "bilinear", _PAD),
        crop=_SQUARE_224,
        convert_rgb=True,
        rule=_textnet_rule,
    ),
    **{
        f"{name}ImageProcessor": _Processor(
            {"height": 448, "width": 448},
            *(HALF, HALF, "bilinear", ("pad_size",)),
            crop={},
            convert_rgb=True,
            refused=(_NO_PADDING,),
        )
        for name in ("Tipsv2", "Tipsv2Dpt")
    },
    "VideoMAEImageProcessor": _Processor(
        {"shortest_edge": 224},
        *(HALF, HALF, "bilinear", _PAD),
        square=False,
        crop=_SQUARE_224,
        crops=True,
    ),
    "VivitImageProcessor": _Processor(
        {"shortest_edge": 256},
        *(HALF, HALF, "bilinear", ("do_convert_rgb", *_PAD)),
        square=False,
        crop=_SQUARE_224,
        crops=True,
    ),
}
_SAM2 = ("Sam2ImageProcessor", "Sam3ImageProcessor")
_FRAMES = ("VideoMAEImageProcessor", "VivitImageProcessor")
_WITHOUT_MEAN = ("GLPNImageProcessor", "Tipsv2ImageProcessor", "Tipsv2DptImageProcessor")
"""Processors that have no default of image_mean, and do not normalise."""


@dataclass(frozen=True, kw_only=True)
class Resized(FrontEnd):
    """Resizes by a rule, and crops or pads. Values: dtype[1, 3, height, width]; a batch takes images of one size."""

    rule: ResizeRule | None = None
    """Chooses the size of the resized image; None does not resize."""
    crop: tuple[int, int] | None = None
    """(height, width) of the centre that is cut out after resizing, with black around images that are smaller."""
    crop_fraction: tuple[float, float] | None = None
    """(height, width) of the centre that is cut out before resizing, as parts of the shorter side (Perceiver)."""
    pad: tuple[int, int] | None = None
    """(height, width) of the canvas in whose corner the image is put, with zeros around (PI0)."""
    pad_multiple: int | None = None
    """The resized image is put into the middle of a canvas whose sides are multiples of it, with zeros around (DPT)."""
    flips_channels: bool = False
    """Whether the channels are in the order blue, green, red."""

    family: ClassVar[str] = "resized"
    processors: ClassVar[tuple[str, ...]] = tuple(name for name in _PROCESSORS if name not in (*_SAM2, *_FRAMES))
    torchvision_only: ClassVar[frozenset[str]] = frozenset(
        {"Tipsv2ImageProcessor", "Tipsv2DptImageProcessor", "PI0ImageProcessor"}
    )
    fill: ClassVar[tuple[int, int, int] | None] = None

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        what = _PROCESSORS[config.type_name]
        for name, default, why in what.refused:
            if config.take_flag(name, default):
                raise config.error(f"{name}=True is not supported: {why}")
        for name in what.unused:
            config.take(name)
        rule = what.rule(config, what.size) if what.rule else take_rule(config, what.size, square=what.square)
        return cls(
            values=_values(config, what),
            filter=config.take_filter(what.filter),
            convert_rgb="do_convert_rgb" not in what.unused and config.take_flag("do_convert_rgb", what.convert_rgb),
            rule=rule,
            flips_channels=_flips_channels(config),
            pad=_pad(config),
            pad_multiple=_pad_multiple(config),
            **_crop_fields(config, what),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views: tuple[View, ...] = ()
        source, by = IMAGE, self.values.arithmetic
        rows, columns = height, width
        if self.crop_fraction is not None:
            rows, columns = (int(fraction * min(height, width)) for fraction in self.crop_fraction)
            views = (cropped_view(height, width, (rows, columns), by=by, fill=(0, 0, 0), emitted=False),)
            source = 0
        rows, columns = checked_size(self.rule, rows, columns)  # an image without pixels becomes black
        if self.pad_multiple is not None:
            canvas = [math.ceil(side / self.pad_multiple) * self.pad_multiple for side in (rows, columns)]
            position = ((canvas[0] - rows) // 2, (canvas[1] - columns) // 2)
            view = View(rows, columns, canvas=(canvas[0], canvas[1]), position=position, source=source)
        else:
            view = cropped_view(rows, columns, self.crop, by=by, fill=(0, 0, 0), source=source)
        if self.pad is not None:
            if view.canvas_size[0] > self.pad[0] or view.canvas_size[1] > self.pad[1]:
                raise DecodeError(
                    f"{view.canvas_size} pixels after resizing are more than those of pad_size={self.pad}"
                )
            view = replace(view, canvas=self.pad, fill=None)
        return ImageLayout(height, width, (*views, view), 0, (0, 0))

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        arranged = super().arrange(pixels, layout)
        return arranged.flip(-2) if self.flips_channels else arranged

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        arranged = super().arrange_alike(pixels, layout)
        return arranged.flip(-2) if self.flips_channels else arranged

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {}


@dataclass(frozen=True, kw_only=True)
class Sam2(Resized):
    """Images of SAM 2 and 3, which are resized to one size; a batch has their `original_sizes`."""

    family: ClassVar[str] = "sam2"
    processors: ClassVar[tuple[str, ...]] = _SAM2
    torchvision_only: ClassVar[frozenset[str]] = frozenset(_SAM2)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {**super().facts(images), "original_sizes": [(one.layout.height, one.layout.width) for one in images]}


@dataclass(frozen=True, kw_only=True)
class FrameSequence(Resized):
    """Frames of videos that are stored as images (VideoMAE, TimeSformer, ViViT).

    Samples are kept apart: `batch_vision` takes one list of frames for each, all of one length, and returns values of
    the shape [samples, frames, 3, height, width].
    """

    family: ClassVar[str] = "frame_sequence"
    processors: ClassVar[tuple[str, ...]] = _FRAMES

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        if len({len(sample) for sample in samples}) > 1:
            counts = ", ".join(str(len(sample)) for sample in samples[:8])
            raise ConfigError(
                f"Videos of different lengths cannot form one batch: {counts} frames. Choose as many frames of each."
            )
        batch = super().collate(samples)
        return {**batch, "pixel_values": batch["pixel_values"].unflatten(0, (len(samples), -1))}


def _values(config: ProcessorConfig, what: _Processor) -> PixelValues:
    if what.steps == "none":
        return PixelValues(None, arithmetic=config.arithmetic)
    if what.steps == "rescale":
        factor = config.take_number("rescale_factor", 1 / 255)
        return PixelValues(factor if config.take_flag("do_rescale", True) else None, arithmetic=config.arithmetic)
    normalizes = config.type_name not in _WITHOUT_MEAN
    if not normalizes and config.take("do_normalize") and config.take("image_mean") is None:
        raise config.error("do_normalize=True needs image_mean and image_std, of which this processor has no defaults")
    vivit = config.type_name == "VivitImageProcessor"
    factor = 1 / 127.5 if vivit else 1 / 255
    values = config.take_values(mean=what.mean, std=what.std, normalize=normalizes, factor=factor)
    if vivit and config.take_flag("offset", True):
        if values.rescale is None:
            raise config.error("offset=True needs do_rescale=True")
        return replace(values, offset=1.0)
    if config.type_name != "EfficientNetImageProcessor":
        return values
    offset = config.take_flag("rescale_offset", False) and values.rescale is not None
    twice = config.take_flag("include_top", True)
    std = config.take_triple("image_std", what.std, least=SMALLEST_FACTOR) if twice else None
    return replace(values, offset=1.0 if offset else 0.0, divisor=std)


def _flips_channels(config: ProcessorConfig) -> bool:
    if config.type_name == "MobileViTImageProcessor":
        return config.take_flag("do_flip_channel_order", True)
    return config.type_name == "LayoutLMv2ImageProcessor"


def _pad(config: ProcessorConfig) -> tuple[int, int] | None:
    if config.type_name != "PI0ImageProcessor":
        return None
    if config.take_flag("do_center_crop", False):
        raise config.error("do_center_crop=True is not supported: the processor pads what it crops")
    size = config.take_size("pad_size", _SQUARE_224, square=True)
    return config.height_and_width("pad_size", size) if config.take_flag("do_pad", True) else None


def _pad_multiple(config: ProcessorConfig) -> int | None:
    if config.type_name != "DPTImageProcessor":
        return None
    given = config.take("size_divisor")
    multiple = None if given is None else config.take_integer("size_divisor", given, most=LARGEST_SIDE)
    return multiple if config.take_flag("do_pad", False) else None


def _crop_fields(config: ProcessorConfig, what: _Processor) -> dict[str, Any]:
    if what.crop is None:
        return {}
    size = config.take_size("crop_size", what.crop, square=True)
    if not config.take_flag("do_center_crop", what.crops):
        return {}
    crop = config.height_and_width("crop_size", size)
    if config.type_name != "PerceiverImageProcessor":
        return {"crop": crop}
    height, width = config.height_and_width("size", config.take_size("size", what.size, square=what.square))
    return {"crop_fraction": (height / crop[0], width / crop[1])}
