"""Images of several sizes, padded to the largest of their batch: DETR, MaskFormer, ViLT and their relatives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.annotations import coco_labels
from energon_dali.decode.front_ends.fixed_size import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    cropped_view,
)
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import LARGEST_SIDE, ProcessorConfig, is_integer
from energon_dali.decode.front_ends.resize_rules import (
    ResizeRule,
    ToEdgeMultiples,
    ToEdges,
    ToSize,
    Within,
    checked_size,
    rule_of,
    take_rule,
)
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

_DETECTORS = tuple(
    f"{name}ImageProcessor" for name in ("Detr", "ConditionalDetr", "DeformableDetr", "GroundingDino", "Yolos")
)
_MASKERS = ("Mask2FormerImageProcessor", "MaskFormerImageProcessor")
_TRANSFORMERS_WITH_TEXT = {
    "BridgeTowerImageProcessor": (288, CLIP_MEAN, CLIP_STD),
    "ViltImageProcessor": (384, HALF, HALF),
}
"""Shorter side, mean and std of processors of ViLT's kind."""
_EDGES = {"shortest_edge": 800, "longest_edge": 1333}
_LONGEST = 1333
_CROP = ("do_center_crop", "crop_size")
_LABELS = (
    *("ignore_index", "do_reduce_labels", "reduce_labels", "num_labels", "num_text", "class_info_file", "repo_path"),
    *("metadata", "size_divisibility", "_max_size", "format"),
)
"""Keys that change labels alone."""


@dataclass(frozen=True, kw_only=True)
class PaddedBatch(FrontEnd):
    """Resizes by a rule. Values: dtype[1, 3, height, width] of an image.

    `batch_vision` pads images with zeros below and to the right, up to the largest height and width of the batch, and
    returns a `pixel_mask` (int64[images, height, width]), which is 1 where there are pixels.
    """

    rule: ResizeRule | None = None
    """Chooses the size of the resized image; None does not resize."""
    crop: int | None = None
    """Sides of the centre that is cut out after resizing (BridgeTower)."""
    pads: bool = True
    """Whether batches are padded; if not, their images must have one size."""
    pad_size: tuple[int, int] | None = None
    """(height, width) of all batches; None takes the largest height and width of each."""
    normalizes_boxes: bool = True
    """Whether boxes of labels are (center x, center y, width, height) as parts of the image, as DETR's model takes
    them; if not, (left, top, right, bottom) in pixels."""
    task: str | None = None
    """Returned as task_inputs of each batch (OneFormer)."""

    family: ClassVar[str] = "padded_batch"
    processors: ClassVar[tuple[str, ...]] = (
        *_DETECTORS,
        *_MASKERS,
        *_TRANSFORMERS_WITH_TEXT,
        "OneFormerImageProcessor",
        "RTDetrImageProcessor",
    )
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_mask")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        if config.type_name in _TRANSFORMERS_WITH_TEXT:
            return cls(**_with_text(config))
        for name in (*_CROP, *_LABELS):
            config.take(name)
        if config.type_name in _MASKERS:
            rule, pads = _masker_rule(config), True
            config.take("do_pad")
        elif config.type_name == "OneFormerImageProcessor":
            rule, pads = take_rule(config, _EDGES, square=False), True
            for name in ("do_pad", "pad_size"):
                config.take(name)
        else:
            rule, pads = _detector_rule(config), _detector_pads(config)
        oneformer, real_time = (config.type_name == f"{name}ImageProcessor" for name in ("OneFormer", "RTDetr"))
        pad_size = None if oneformer else config.take_size("pad_size", {}, square=True)
        normalizes = config.take_flag("do_normalize", not real_time)
        converts = config.take_flag("do_convert_annotations", real_time or normalizes)
        return cls(
            values=config.take_values(mean=IMAGENET_MEAN, std=IMAGENET_STD, normalize=not real_time),
            filter=config.take_filter("bilinear"),
            convert_rgb=config.take_flag("do_convert_rgb", oneformer),
            rule=rule,
            pads=pads,
            pad_size=config.height_and_width("pad_size", pad_size) if pad_size else None,
            normalizes_boxes=converts,
            task="the task is panoptic" if oneformer else None,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = checked_size(self.rule, height, width)
        crop = None if self.crop is None else (self.crop, self.crop)
        view = cropped_view(rows, columns, crop, by=self.values.arithmetic)
        if self.pads and self.pad_size is not None:
            rows, columns = view.tile_size
            if rows > self.pad_size[0] or columns > self.pad_size[1]:
                raise DecodeError(
                    f"An image of {width} x {height} pixels is resized to {columns} x {rows}, which is larger than "
                    f"pad_size, {self.pad_size[1]} x {self.pad_size[0]}. Give a larger pad_size, or none."
                )
        return ImageLayout(height, width, (view,), 0, (0, 0))

    def padded_size(self, layouts: Sequence[ImageLayout]) -> tuple[int, int]:
        """Returns the (height, width) of the batch of these images.

        Args:
            layouts: Of its images.

        Raises:
            ConfigError: They have several sizes, and this front end does not pad.
        """
        sizes = [layout.views[-1].tile_size for layout in layouts]
        if self.pads and self.pad_size is not None:
            return self.pad_size
        if not self.pads and len(set(sizes)) > 1:
            shown = ", ".join(f"{width} x {height}" for height, width in sorted(set(sizes))[:4])
            raise ConfigError(
                f"Images of different sizes cannot form one batch: {shown} pixels (width x height). This processor "
                "does not pad. Set do_pad=True in its configuration, or batch equal sizes together."
            )
        return max(height for height, _ in sizes), max(width for _, width in sizes)

    def labels(
        self, annotation: Mapping[str, Any], layout: ImageLayout, padded_size: tuple[int, int] | None = None
    ) -> dict[str, torch.Tensor]:
        """Returns the labels that DETR's processors make of an annotation of COCO for detection.

        Masks of objects are not among them: `place_map` moves each to the resized image.

        Args:
            annotation: {"image_id": ..., "annotations": [{"bbox": [left, top, width, height], "category_id": ...,
                "area": ..., "iscrowd": ...}, ...]}, in pixels of the image; crowds and empty boxes are left out.
            layout: Of the image (`handle.layout`, or `VisionInput.layout`).
            padded_size: (height, width) of its batch, of `padded_size`; None does not pad.

        Returns:
            image_id, class_labels, boxes (float32[n, 4]), area, iscrowd, orig_size and size.
        """
        import torch

        made = coco_labels(annotation, layout, padded_size, normalizes=self.normalizes_boxes)
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in made.items()}

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        height, width = self.padded_size([image.layout for image in images])
        device = images[0].pixels.device
        values = zero_values((len(images), 3, height, width), self.torch_dtype, device)
        mask = torch.zeros((len(images), height, width), dtype=torch.int64)
        for number, image in enumerate(images):
            rows, columns = image.layout.views[-1].tile_size
            if (rows, columns) == (height, width):
                self.finish(image.pixels, image.layout, values[number, None])
            else:
                values[number, :, :rows, :columns] = image.values[0]
            mask[number, :rows, :columns] = 1
        batch: dict[str, Any] = {"pixel_values": values}
        if self.pads:
            batch["pixel_mask"] = mask.to(device)
        if self.task is not None:
            batch["task_inputs"] = [self.task]
        return batch


def _with_text(config: ProcessorConfig) -> dict[str, Any]:
    """Returns the fields of a processor of ViLT's kind."""
    shortest, mean, std = _TRANSFORMERS_WITH_TEXT[config.type_name]
    config.take("pad_size")
    size = config.take_size("size", {"shortest_edge": shortest})
    multiple = config.take_integer("size_divisor", 32, most=LARGEST_SIDE)
    resizes = config.take_flag("do_resize", True)
    if resizes and "shortest_edge" not in size:
        raise config.error(f"size={size} has no shortest_edge")
    crop: int | None = None
    if config.type_name == "BridgeTowerImageProcessor":
        crop_size = config.take_size("crop_size", {"shortest_edge": shortest}, square=True)
        if config.take_flag("do_center_crop", True):
            if "shortest_edge" not in crop_size:
                raise config.error(f"crop_size={crop_size} has no shortest_edge, which this processor crops to")
            crop = crop_size["shortest_edge"]
    else:
        for name in _CROP:
            config.take(name)
    return {
        **config.take_conversion(mean, std, "bicubic", rgb=False),
        "rule": ToEdgeMultiples(size["shortest_edge"], multiple) if resizes else None,
        "crop": crop,
        "pads": config.take_flag("do_pad", True),
    }


def _edges(config: ProcessorConfig, default: dict[str, int], longest: int | None) -> dict[str, int]:
    """Returns a size, of which files of before 2023 have the shorter side as one number, and the other as max_size."""
    given = config.take("size")
    limit = config.take("max_size", longest)
    if limit is not None:
        limit = config.take_integer("max_size", limit, most=LARGEST_SIDE)
    if is_integer(given):
        edge = config.take_integer("size", given, most=LARGEST_SIDE)
        config.take("default_to_square")
        return {"shortest_edge": edge} | ({} if limit is None else {"longest_edge": limit})
    return config.take_size("size", default)


def _detector_rule(config: ProcessorConfig) -> ResizeRule | None:
    if config.type_name == "RTDetrImageProcessor":
        size = config.take_size("size", {"height": 640, "width": 640})
    else:
        size = _edges(config, _EDGES, _LONGEST)
    if not config.take_flag("do_resize", True):
        return None
    if size.keys() == {"shortest_edge"}:
        raise config.error(f"size={size} has no longest_edge")
    rule = rule_of(config, size)
    if config.type_name == "YolosImageProcessor" and isinstance(rule, ToEdges):
        return ToEdges(rule.shortest_edge, rule.longest_edge, 16, "down")
    return rule


def _detector_pads(config: ProcessorConfig) -> bool:
    if config.type_name == "RTDetrImageProcessor":
        return config.take_flag("do_pad", False)
    legacy = config.take_flag("pad_and_return_pixel_mask", True)
    return config.take_flag("do_pad", legacy)


def _masker_rule(config: ProcessorConfig) -> ResizeRule | None:
    given, limit = config.take("size"), config.take("max_size")
    default = _EDGES if given is not None or limit is None else {**_EDGES, "longest_edge": limit}
    size = _edges(config, default, None)
    multiple = config.take_integer("size_divisor", 32, least=0, most=LARGEST_SIDE) or 1
    if not config.take_flag("do_resize", True):
        return None
    if size.keys() == {"shortest_edge"}:
        raise config.error(f"size={size} has no longest_edge")
    rule = rule_of(config, size)
    if isinstance(rule, ToEdges):
        return ToEdges(rule.shortest_edge, rule.longest_edge, multiple)
    if isinstance(rule, Within):
        return Within(rule.max_height, rule.max_width, multiple)
    assert isinstance(rule, ToSize)
    return ToSize(*(math.ceil(side / multiple) * multiple for side in (rule.height, rule.width)))
