"""Boxes and maps of an image, such as masks, moved to where a layout puts the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from energon_dali.decode.front_ends.layout import IMAGE, ImageLayout, View
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.resampling import Resampling


def place_boxes(boxes: ArrayLike, layout: ImageLayout) -> NDArray[np.float32]:
    """Returns boxes in pixels of the canvas of a layout's last view.

    Args:
        boxes: (left, top, right, bottom) of each, in pixels of the image: [n, 4]. Points are [n, 2].
        layout: Of the image.

    Returns:
        float32, of the shape of `boxes`; not limited to the canvas.
    """
    placed = np.array(boxes, np.float32)
    for view, (height, width) in _path(layout):
        left, top, right, bottom = view.box or (0, 0, width, height)
        scale = (view.width / (right - left), view.height / (bottom - top))
        for axis in range(placed.shape[-1]):
            across = axis % 2
            column = (placed[..., axis] - (left, top)[across]) * np.float32(scale[across])
            placed[..., axis] = column + view.position[1 - across]
    return placed


def place_map(values: ArrayLike, layout: ImageLayout, *, fill: int = 0, by: Resampling = "pil") -> NDArray[Any]:
    """Returns a map of an image, such as a mask or classes of pixels, on the canvas of a layout's last view.

    Args:
        values: bool, uint8 or integers[height, width]; or [n, height, width] for several maps. The nearest pixel is
            taken.
        layout: Of the image.
        fill: Value of pixels outside the image.
        by: Who resamples: they choose other pixels where two are equally near.

    Returns:
        [height, width] or [n, height, width] of the canvas, of the same dtype.

    Raises:
        ConfigError: The map has another size than the image.
    """
    maps = np.asarray(values)
    if maps.shape[-2:] != (layout.height, layout.width):
        raise ConfigError(
            f"The map has {maps.shape[-1]} x {maps.shape[-2]} pixels (width x height), and the image "
            f"{layout.width} x {layout.height}. Give a map of the image's size."
        )
    several = maps.reshape(-1, *maps.shape[-2:])
    canvases = [_placed_map(one, layout, fill, by) for one in several]
    height, width = layout.views[-1].canvas_size
    stacked = np.stack(canvases) if canvases else np.empty((0, height, width), maps.dtype)
    return stacked.reshape(*maps.shape[:-2], height, width)


def coco_labels(
    annotation: Mapping[str, Any], layout: ImageLayout, padded_size: tuple[int, int] | None, *, normalizes: bool
) -> dict[str, NDArray[Any]]:
    """Returns the labels that DETR's processors make of an annotation of COCO for detection, without its masks.

    Args:
        annotation: {"image_id": ..., "annotations": [{"bbox": [left, top, width, height], "category_id": ...,
            "area": ..., "iscrowd": ...}, ...]}; crowds and empty boxes are left out.
        layout: Of the image.
        padded_size: (height, width) of its batch; None if it is not padded.
        normalizes: Whether boxes become (center x, center y, width, height) as parts of the image.

    Returns:
        image_id, class_labels, boxes (float32[n, 4]), area, iscrowd, orig_size, and size.
    """
    objects = [entry for entry in annotation["annotations"] if not entry.get("iscrowd", 0)]
    boxes = np.asarray([entry["bbox"] for entry in objects], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2] = boxes[:, 0::2].clip(min=0, max=layout.width)
    boxes[:, 1::2] = boxes[:, 1::2].clip(min=0, max=layout.height)
    kept = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 2] > boxes[:, 0])
    area = np.asarray([entry["area"] for entry in objects], np.float32)[kept]
    boxes = boxes[kept]
    height, width = layout.views[-1].tile_size
    if (height, width) != (layout.height, layout.width):
        ratio_y, ratio_x = height / layout.height, width / layout.width
        boxes = boxes * np.asarray([ratio_x, ratio_y, ratio_x, ratio_y], np.float32)
        area = area * (ratio_x * ratio_y)
    if normalizes:
        left, top, right, bottom = boxes.T
        boxes = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], -1)
        boxes /= np.asarray([width, height, width, height], np.float32)
        if padded_size not in (None, (height, width)):
            assert padded_size is not None
            ratios = (width / padded_size[1], height / padded_size[0])
            boxes *= np.asarray([*ratios, *ratios])
    return {
        "image_id": np.asarray([annotation["image_id"]], np.int64),
        "class_labels": np.asarray([entry["category_id"] for entry in objects], np.int64)[kept],
        "boxes": boxes,
        "area": area,
        "iscrowd": np.asarray([entry.get("iscrowd", 0) for entry in objects], np.int64)[kept],
        "orig_size": np.asarray([layout.height, layout.width], np.int64),
        "size": np.asarray(padded_size or (height, width), np.int64),
    }


def _path(layout: ImageLayout) -> list[tuple[View, tuple[int, int]]]:
    """Returns the views from the image to the last one, each with the (height, width) of its source."""
    path: list[tuple[View, tuple[int, int]]] = []
    view = layout.views[-1]
    while view.source != IMAGE:
        source = layout.views[view.source]
        path.append((view, source.canvas_size))
        view = source
    return [(view, (layout.height, layout.width)), *reversed(path)]


def _placed_map(values: NDArray[Any], layout: ImageLayout, fill: int, by: Resampling) -> NDArray[Any]:
    for view, _ in _path(layout):
        if view.box is not None:
            left, top, right, bottom = view.box
            values = values[top:bottom, left:right]
        resized = _nearest(values, view.height, view.width, by)
        values = np.full(view.canvas_size, fill, resized.dtype)
        (top, left), (height, width) = view.position, view.canvas_size
        inside = resized[max(0, -top) : max(0, height - top), max(0, -left) : max(0, width - left)]
        values[max(0, top) :, max(0, left) :][: inside.shape[0], : inside.shape[1]] = inside
    return values


def _nearest(values: NDArray[Any], height: int, width: int, by: Resampling) -> NDArray[Any]:
    if values.shape == (height, width):
        return values
    if 0 in values.shape:
        return np.zeros((height, width), values.dtype)
    if by == "torch":
        import torch
        from torch.nn.functional import interpolate

        numbers = torch.from_numpy(np.ascontiguousarray(values)).double()[None, None]
        chosen = interpolate(numbers, size=(height, width), mode="nearest-exact")[0, 0]
        return chosen.numpy().astype(values.dtype)
    narrow = values.dtype in (np.uint8, np.bool_)
    image = Image.fromarray(np.ascontiguousarray(values).astype(np.uint8 if narrow else np.int32))
    return np.asarray(image.resize((width, height), Image.Resampling.NEAREST)).astype(values.dtype)
