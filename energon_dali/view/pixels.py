"""Arrays as images: undoes normalisation, and puts tiles and patches back together where their grid is known.

What a front end made of an image or video is put back together by its layout: views, tiles and patches.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import View

FloatArray = npt.NDArray[np.float32]

MAX_IMAGES = 32
"""Images that are shown of one field."""
MAX_SIDE_PX = 768
"""Larger images are shown smaller."""
_SMALLEST_SIDE = 8
_LARGEST_PATCH = 64
_MAX_PIXELS = 1 << 25

NORMALISATIONS = {
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation by which models' inputs are usually normalised."""
Normalisation = tuple[Sequence[float], Sequence[float]]


@dataclass(slots=True)
class ShownImage:
    """One image of an encoded sample or batch."""

    png: bytes
    """The image as a PNG."""
    width: int
    """Width of what it shows in pixels, before it was made smaller for the page."""
    height: int
    """Height in pixels, likewise."""
    note: str = ""
    """How it was made of the array."""


def find_images(
    name: str, array: npt.NDArray[Any], others: Mapping[str, Any], normalisation: Normalisation | None = None
) -> list[ShownImage]:
    """Returns the images that an array holds; none if it does not look like images.

    Args:
        name: Name of the field.
        array: (C, H, W), (H, W, C), with any leading dimensions; or patches (N, C*P*P), (B, N, C*P*P).
        others: Arrays of the other fields by name, among them grids such as `image_grid_thw`.
        normalisation: Mean and standard deviation that the encoder's decoder applies, if known.
    """
    if array.size == 0 or array.dtype == bool or not np.issubdtype(array.dtype, np.number):
        return []
    if np.iscomplexobj(array):
        return []
    joined = list(_joined_patches(name, array, others))
    pixels = None if joined else _channels_last(array)
    if pixels is None:
        return [show_image(image, note, normalisation) for image, note in joined]
    grid = _tile_grid(name, len(pixels), others)
    if grid is not None:
        rows, columns = grid
        whole = show_image(*join_tiles(pixels[: rows * columns], rows, columns), normalisation)
        return [whole, *(show_image(one, "overview", normalisation) for one in pixels[rows * columns :])]
    return [show_image(image, "", normalisation) for image in pixels[:MAX_IMAGES]]


def join_tiles(tiles: npt.NDArray[Any], rows: int, columns: int) -> tuple[npt.NDArray[Any], str]:
    """Returns (image, how it was made) of tiles (rows * columns, H, W, C), row by row."""
    whole = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
    image = whole.reshape(rows * tiles.shape[1], columns * tiles.shape[2], -1)
    return image, f"{rows} x {columns} tiles put together"


def _channels_last(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Returns (N, H, W, C) of an array of images; None if it is not one."""
    shape = array.shape
    if len(shape) < 3:
        return None
    if shape[-3] in (1, 3, 4) and min(shape[-2:]) >= _SMALLEST_SIDE:
        flat: npt.NDArray[Any] = array.reshape(-1, *shape[-3:]).transpose(0, 2, 3, 1)
        return flat
    if shape[-1] in (1, 3, 4) and min(shape[-3:-1]) >= _SMALLEST_SIDE:
        return array.reshape(-1, *shape[-3:])
    return None


def _tile_grid(name: str, count: int, others: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns (rows, columns) of the tiles of one image, if another field says so."""
    if count < 2:
        return None
    stem = name.rpartition(".")[0]
    for other, value in others.items():
        words = other.rpartition(".")[2].lower()
        if other.rpartition(".")[0] != stem or not any(word in words for word in ("tile", "crop", "grid", "aspect")):
            continue
        numbers = np.asarray(value).reshape(-1) if isinstance(value, np.ndarray) else np.zeros(0)
        if numbers.size == 2 and np.issubdtype(numbers.dtype, np.integer):
            rows, columns = (int(number) for number in numbers)
            if rows > 0 and columns > 0 and rows * columns in (count, count - 1):
                return rows, columns
    return None


# --- patches -------------------------------------------------------------------------------------------------------


def _joined_patches(name: str, array: npt.NDArray[Any], others: Mapping[str, Any]) -> Iterator[tuple[FloatArray, str]]:
    """Yields the images whose patches a field holds, in the order and the grid that another field gives."""
    if array.ndim == 4 and max(array.shape[-2:]) <= _LARGEST_PATCH:
        array = array.reshape(len(array), -1)
    if array.ndim not in (2, 3) or (not np.issubdtype(array.dtype, np.floating) and array.dtype != np.uint8):
        return
    grids = _patch_grids(name, others)
    if grids is None:
        return
    if array.ndim == 3:  # (B, N, D): one image per row, padded at its end
        rows = [(array[row], grids[row]) for row in range(min(len(array), len(grids)))]
    else:
        ends = np.cumsum(grids.prod(1))
        if ends[-1] > len(array) or array[ends[-1] :].any():  # patches of anything else; padding is zero
            return
        rows = [(array[end - int(grid.prod()) : end], grid) for end, grid in zip(ends, grids, strict=True)]
    for patches, (frames, height, width) in rows[:MAX_IMAGES]:
        count = int(frames * height * width)
        if 0 < count <= len(patches):
            yield from join_patches(np.asarray(patches[:count], np.float32), int(frames), int(height), int(width))


def _patch_grids(name: str, others: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    """Returns int64[images, 3]: frames, rows and columns of the patches of each image; None if no field says so.

    Of two grids, that of videos is for the field `name` if it names videos, and the other one if it does not.
    """
    is_video = _names_video(name)
    for other, value in sorted(others.items(), key=lambda item: _names_video(item[0]) != is_video):
        words = other.rpartition(".")[2].lower()
        if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.integer) or not value.size:
            continue
        if words.endswith("grid_thw") and value.shape[-1] == 3:
            return value.reshape(-1, 3).astype(np.int64)
        if (words.endswith(("grid_hw", "patch_grid")) or words == "spatial_shapes") and value.shape[-1] == 2:
            pairs = value.reshape(-1, 2).astype(np.int64)
            return np.concatenate([np.ones((len(pairs), 1), np.int64), pairs], 1)
    return None


def _names_video(name: str) -> bool:
    return "video" in name.rpartition(".")[2].lower()


def join_patches(patches: FloatArray, frames: int, height: int, width: int) -> Iterator[tuple[FloatArray, str]]:
    """Yields (pixels, how they were made) of the frames of one image or video.

    Args:
        patches: float32[frames * height * width, D].
        frames: Frames, or groups of as many as a patch has.
        height: Rows of patches.
        width: Columns of patches.

    Which order the patches and their channels have is not written anywhere: of the usual ones, the one with the
    smallest steps between neighbouring patches is taken.
    """
    candidates = [
        (_seam(image, side), note, image)
        for image, side, note in _candidates(patches, frames, height, width)
        if image.shape[1] * image.shape[2] <= _MAX_PIXELS
    ]
    if not candidates:
        return
    _, note, images = min(candidates, key=lambda candidate: candidate[0])
    for image in images[:MAX_IMAGES]:
        yield image, note


def _candidates(patches: FloatArray, frames: int, height: int, width: int) -> Iterator[tuple[FloatArray, int, str]]:
    """Yields (images (T, H, W, 3), side of a patch, how it was made) for all layouts that the length allows."""
    length = patches.shape[1]
    for depth in (1, 2):  # frames in a patch
        side = isqrt(length // (3 * depth))
        if side < 2 or 3 * depth * side * side != length:
            continue
        for merge in (1, 2):  # patches that a model merges are neighbours in the list
            if height % merge or width % merge:
                continue
            for is_last in (False, True):
                yield _arrange(patches, (frames, height, width), depth, side, merge, is_last)


def _arrange(
    patches: FloatArray, grid: tuple[int, int, int], depth: int, side: int, merge: int, is_last: bool
) -> tuple[FloatArray, int, str]:
    frames, height, width = grid
    pixels = (depth, side, side, 3) if is_last else (3, depth, side, side)
    blocks = patches.reshape(frames, height // merge, width // merge, merge, merge, *pixels)
    order = (0, 5, 1, 3, 6, 2, 4, 7, 8) if is_last else (0, 6, 1, 3, 7, 2, 4, 8, 5)
    images = blocks.transpose(order).reshape(frames * depth, height * side, width * side, 3)
    if depth > 1 and frames == 1 and np.array_equal(images[0], images[1]):  # an image, repeated as a frame
        images = images[:1]
    merged = f", {merge} x {merge} of them neighbours" if merge > 1 else ""
    return images, side, f"{height} x {width} patches of {side} px put together{merged}"


def _seam(images: FloatArray, side: int) -> float:
    """Returns the mean step across the borders of patches, and inside them."""
    image = images[0]
    rows, columns = np.abs(np.diff(image, axis=0)), np.abs(np.diff(image, axis=1))
    borders = [rows[side - 1 :: side].mean() if len(image) > side else 0.0]
    borders.append(columns[:, side - 1 :: side].mean() if image.shape[1] > side else 0.0)
    return float(sum(borders) + rows.mean() + columns.mean())


# --- front ends ----------------------------------------------------------------------------------------------------


def vision_images(vision: VisionInput, values: npt.NDArray[Any]) -> list[ShownImage]:
    """Returns the views that a model sees of an image, or of the frames of a video.

    Args:
        vision: What the decoder gave.
        values: Its values, on the CPU: tiles (..., 3, H, W), or patches (N, D) in the order of the front end.
    """
    normalisation = undo_of(vision)
    found: list[ShownImage] = []
    if values.ndim >= 4 and values.shape[-3] in (1, 3):
        tiles = values.reshape(-1, *values.shape[-3:]).transpose(0, 2, 3, 1)
        for image, note in _views(tiles, vision.layout.views):
            found.append(show_image(image, note, normalisation))
            if len(found) == MAX_IMAGES:
                break
        return found
    grid = vision.layout.grid
    if values.ndim == 2 and len(grid) in (2, 3):
        frames, rows, columns = grid if len(grid) == 3 else (1, *grid)
        if frames * rows * columns <= len(values):
            patches = np.asarray(values[: frames * rows * columns], np.float32)
            found += [
                show_image(image, note, normalisation) for image, note in join_patches(patches, frames, rows, columns)
            ]
    return found


def undo_of(vision: VisionInput) -> Normalisation | None:
    """Returns mean and standard deviation, of values from 0 to 1, that the front end applies; None if it does not."""
    pixels = vision.front_end.values
    if str(vision.values.dtype) == "torch.uint8":
        return None
    scale = 1.0 if pixels.rescale is None else pixels.rescale * 255
    mean, std = pixels.mean or (0.0,), pixels.std or (1.0,)
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _views(tiles: npt.NDArray[Any], views: tuple[View, ...]) -> Iterator[tuple[npt.NDArray[Any], str]]:
    """Yields (image, how it was made) of the emitted views, frame after frame; of single tiles if they do not fit."""
    emitted = [view for view in views if view.emitted]
    per_frame = sum(view.num_tiles for view in emitted)
    fits = per_frame and len(tiles) % per_frame == 0
    if not fits or any(view.tile_size != tiles.shape[1:3] for view in emitted):
        yield from ((tile, "") for tile in tiles)
        return
    for first in range(0, len(tiles), per_frame):
        start = first
        for view in emitted:
            rows, columns = (whole // tile for whole, tile in zip(view.canvas_size, view.tile_size, strict=True))
            part = tiles[start : start + rows * columns]
            start += rows * columns
            yield (part[0], "") if len(part) == 1 else join_tiles(part, rows, columns)


# --- pixels --------------------------------------------------------------------------------------------------------


def show_image(image: npt.NDArray[Any], note: str, normalisation: Normalisation | None) -> ShownImage:
    """Returns an image for the page.

    Args:
        image: (H, W, C), of any number type; see `to_uint8`.
        note: How it was made.
        normalisation: Mean and standard deviation, if known.
    """
    pixels, how = to_uint8(image, normalisation)
    height, width = pixels.shape[:2]
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX))
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return ShownImage(file.getvalue(), width, height, ", ".join(filter(None, (note, how))))


def to_uint8(image: npt.NDArray[Any], normalisation: Normalisation | None = None) -> tuple[npt.NDArray[np.uint8], str]:
    """Returns (uint8[H, W, C], what was done to show it).

    Args:
        image: (H, W, C), of any number type. Floats are 0 to 1, -1 to 1, normalised by a mean and a standard
            deviation, or anything else; integers are 0 to 255, or anything else.
        normalisation: Mean and standard deviation, if known.
    """
    if not np.issubdtype(image.dtype, np.floating):
        low, high = int(image.min()), int(image.max())
        if low >= 0 and high <= 255:
            return image.astype(np.uint8), ""
        stretched = (image.astype(np.float64) - low) / (high - low or 1)
        return _bytes(stretched, 1.0), f"{low} to {high} shown as black to white"
    values = np.nan_to_num(image.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    least, most = float(values.min()), float(values.max())
    if normalisation is not None and len(normalisation[0]) in (1, values.shape[2]):
        mean, std = (np.asarray(row, np.float32) for row in normalisation)
        return _bytes(values * std + mean, 1.0), "normalisation undone"
    if least >= -1e-3 and most <= 1 + 1e-3:
        return _bytes(values, 1.0), ""
    if least >= -1e-3 and 1 < most <= 255.5:
        return _bytes(values, 255.0), ""
    if least >= -1 - 1e-3 and most <= 1 + 1e-3:
        return _bytes(values / 2 + 0.5, 1.0), "-1 to 1 shown as black to white"
    if values.shape[2] == 3:
        for name, (mean_, std_) in NORMALISATIONS.items():
            undone = values * np.asarray(std_, np.float32) + np.asarray(mean_, np.float32)
            if undone.min() >= -0.02 and undone.max() <= 1.02:
                return _bytes(undone, 1.0), f"normalisation of {name} undone"
    return _bytes(
        (values - least) / max(most - least, 1e-12), 1.0
    ), f"{least:.3g} to {most:.3g} shown as black to white"


def _bytes(values: npt.NDArray[Any], white: float) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = np.clip(np.rint(values * (255.0 / white)), 0, 255).astype(np.uint8)
    return pixels
