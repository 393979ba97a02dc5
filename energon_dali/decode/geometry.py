"""Folds declared operations into one box of the source, one resampling and one flip, drawn from a seed.

Every backend uses the same geometry, so a sample gets the same crop from PIL and from DALI, on every machine. Box and
sizes follow torchvision. Two resamplings in a row become one, which is sharper than torchvision's two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from energon_dali.decode.operations import (
    CenterCrop,
    GeometricOperation,
    HorizontalFlip,
    Interpolation,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from energon_dali.decode.spec import EncodedImage
from energon_dali.errors import DecodeError
from energon_dali.plan.rng import mix

_ATTEMPTS = 10
"""Attempts of a RandomResizedCrop before it falls back to the centre, as in torchvision."""
_SUPPORT: dict[Interpolation, float] = {"nearest": 0.5, "bilinear": 1.0, "bicubic": 2.0}
"""Radius of each filter in output pixels."""
_TO_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Geometry:
    """The part of an image that becomes the result, in pixels of the image after any EXIF rotation.

    To make the result: cut `window` out of the image; resample the box to the output size (the box is in the image's
    coordinates, so subtract the window's corner; the filter may read the whole window); then flip.
    """

    top: float
    """Upper edge of the box."""
    left: float
    """Left edge of the box."""
    height: float
    """Height of the box; a whole number unless a crop follows a resize."""
    width: float
    """Width of the box."""
    out_height: int
    """Height of the result."""
    out_width: int
    """Width of the result."""
    flip: bool
    """Whether the result is mirrored left to right."""
    window: tuple[int, int, int, int]
    """(top, left, height, width) of the needed pixels: the box, plus what the filter reads around it if a crop follows
    a resize. It contains the box and is inside the image."""

    @classmethod
    def whole(cls, height: int, width: int) -> Geometry:
        """Returns the geometry that leaves an image of this size as it is."""
        return cls(0, 0, height, width, height, width, False, (0, 0, height, width))

    @property
    def box_is_window(self) -> bool:
        """Whether the box is made of whole pixels, and the filter reads nothing else."""
        return (self.top, self.left, self.height, self.width) == self.window

    @property
    def resamples(self) -> bool:
        """Whether pixels are computed. If not, the result is the window, flipped or not."""
        return (self.height, self.width) != (self.out_height, self.out_width) or not self.box_is_window

    def reduced(self, factor: int, shift_y: float, shift_x: float, size: tuple[int, int]) -> Geometry:
        """Returns the same geometry in pixels of an image that was decoded at a smaller scale.

        Args:
            factor: Divisor of both sides.
            shift_y: What to add to rows before they are divided.
            shift_x: What to add to columns before they are divided.
            size: (height, width) of the smaller image.
        """
        top, left, height, width = self.window
        first_row = min(size[0] - 1, int((top + shift_y) // factor))
        first_column = min(size[1] - 1, int((left + shift_x) // factor))
        end_row = min(size[0], math.ceil((top + height + shift_y) / factor))
        end_column = min(size[1], math.ceil((left + width + shift_x) / factor))
        return Geometry(
            (self.top + shift_y) / factor,
            (self.left + shift_x) / factor,
            self.height / factor,
            self.width / factor,
            self.out_height,
            self.out_width,
            self.flip,
            (first_row, first_column, end_row - first_row, end_column - first_column),
        )


class _View:
    """The image after some of the operations: a box of the source, shown at some size, possibly mirrored."""

    __slots__ = ("box_height", "box_left", "box_top", "box_width", "flip", "height", "scaled", "valid", "width")

    def __init__(self, width: int, height: int) -> None:
        self.box_top = self.box_left = 0.0
        self.box_height, self.box_width = float(height), float(width)
        self.height, self.width = height, width
        self.flip = self.scaled = False
        self.valid = (0, 0, height, width)

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        if self.flip:
            left = self.width - left - width
        scale_y, scale_x = self.box_height / self.height, self.box_width / self.width
        self.box_top += top * scale_y
        self.box_left += left * scale_x
        self.box_height, self.box_width = height * scale_y, width * scale_x
        self.height, self.width = height, width
        if not self.scaled:
            self.valid = (int(self.box_top), int(self.box_left), height, width)

    def resize(self, height: int, width: int) -> None:
        self.scaled = self.scaled or (height, width) != (self.height, self.width)
        self.height, self.width = height, width


def draw_geometry(operations: Sequence[GeometricOperation], width: int, height: int, seed: int = 0) -> Geometry | None:
    """Returns what the operations do to an image of this size; None if they do not change it.

    Args:
        operations: Geometric operations, in order (`ImageSpec.geometric`).
        width: Width of the image in pixels, after any EXIF rotation.
        height: Height likewise.
        seed: Determines all random draws: the same seed and size give the same geometry everywhere.

    Raises:
        DecodeError: A crop is larger than the image at that point; the message names both sizes.
    """
    if not operations:
        return None
    view = _View(width, height)
    interpolation: Interpolation = "bilinear"
    antialias = True
    for number, operation in enumerate(operations):
        if isinstance(operation, Resize):
            view.resize(*resized_size(operation.size, view.height, view.width))
            interpolation, antialias = operation.interpolation, operation.antialias
        elif isinstance(operation, RandomResizedCrop):
            view.crop(*_draw_box(operation, view.height, view.width, seed, number))
            view.resize(*_pair(operation.size))
            interpolation, antialias = operation.interpolation, operation.antialias
        elif isinstance(operation, HorizontalFlip):
            view.flip ^= _draw(seed, number, 0) < operation.p
        else:
            view.crop(*_draw_crop(operation, view.height, view.width, seed, number))
    if not view.flip and (view.height, view.width) == (view.box_height, view.box_width) == (height, width):
        return None
    return Geometry(
        view.box_top,
        view.box_left,
        view.box_height,
        view.box_width,
        view.height,
        view.width,
        view.flip,
        _window(view, _SUPPORT[interpolation], antialias),
    )


def upright_size(handle: EncodedImage) -> tuple[int, int]:
    """Returns (height, width) of an image, turned upright if its spec applies the EXIF orientation."""
    if handle.spec.apply_exif_orientation and handle.orientation >= 5:
        return handle.width, handle.height
    return handle.height, handle.width


def handle_geometry(handle: EncodedImage) -> Geometry | None:
    """Returns the geometry of a handle, in its rotated frame if its spec applies the EXIF orientation.

    Raises:
        DecodeError: A crop is larger than the image.
    """
    height, width = upright_size(handle)
    return draw_geometry(handle.spec.geometric, width, height, handle.seed)


def result_size(handle: EncodedImage) -> tuple[int, int]:
    """Returns (height, width) of an image after its rotation and all declared operations.

    Raises:
        DecodeError: A crop is larger than the image.
    """
    geometry = handle_geometry(handle)
    return upright_size(handle) if geometry is None else (geometry.out_height, geometry.out_width)


def resized_size(size: int | tuple[int, int], height: int, width: int) -> tuple[int, int]:
    """Returns (height, width) after a Resize. A pair is used as it is; a single number is the shorter side."""
    if not isinstance(size, int):
        return size
    if width <= height:
        return max(1, int(size * height / width)), size
    return size, max(1, int(size * width / height))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _draw(seed: int, number: int, draw: int) -> float:
    """Returns the random number in [0, 1) of this seed, operation and draw."""
    return (mix(seed, number, draw) >> 11) * _TO_UNIT


def _draw_crop(
    operation: CenterCrop | RandomCrop, height: int, width: int, seed: int, number: int
) -> tuple[int, int, int, int]:
    """Returns (top, left, height, width) of a fixed-size crop."""
    out_height, out_width = _pair(operation.size)
    if out_height > height or out_width > width:
        raise DecodeError(
            f"{type(operation).__name__} wants {out_height} x {out_width} pixels (height x width), the image has "
            f"{height} x {width} there. Put a Resize before the crop, or leave small images out of the dataset."
        )
    if isinstance(operation, CenterCrop):
        # Python's round (half to even), as in torchvision.
        return round((height - out_height) / 2.0), round((width - out_width) / 2.0), out_height, out_width
    top = int(_draw(seed, number, 0) * (height - out_height + 1))
    left = int(_draw(seed, number, 1) * (width - out_width + 1))
    return top, left, out_height, out_width


def _draw_box(
    operation: RandomResizedCrop, height: int, width: int, seed: int, number: int
) -> tuple[int, int, int, int]:
    """Returns (top, left, height, width) of the box of a RandomResizedCrop."""
    area = height * width
    low, high = math.log(operation.ratio[0]), math.log(operation.ratio[1])
    smallest, largest = operation.scale
    for attempt in range(0, 4 * _ATTEMPTS, 4):
        target_area = area * (smallest + (largest - smallest) * _draw(seed, number, attempt))
        ratio = math.exp(low + (high - low) * _draw(seed, number, attempt + 1))
        box_width, box_height = round(math.sqrt(target_area * ratio)), round(math.sqrt(target_area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(_draw(seed, number, attempt + 2) * (height - box_height + 1))
            left = int(_draw(seed, number, attempt + 3) * (width - box_width + 1))
            return top, left, box_height, box_width
    box_height, box_width = height, width
    if width / height < operation.ratio[0]:
        box_height = min(height, max(1, round(width / operation.ratio[0])))
    elif width / height > operation.ratio[1]:
        box_width = min(width, max(1, round(height * operation.ratio[1])))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _window(view: _View, support: float, antialias: bool) -> tuple[int, int, int, int]:
    """Returns (top, left, height, width) of the pixels that the box and the filter touch, within the valid pixels."""
    valid_top, valid_left, valid_height, valid_width = view.valid
    if (view.box_height, view.box_width) == (valid_height, valid_width):
        return view.valid
    margin_y = support * (max(1.0, view.box_height / view.height) if antialias else 1.0) + 1.0
    margin_x = support * (max(1.0, view.box_width / view.width) if antialias else 1.0) + 1.0
    top = max(valid_top, math.floor(view.box_top - margin_y))
    left = max(valid_left, math.floor(view.box_left - margin_x))
    bottom = min(valid_top + valid_height, math.ceil(view.box_top + view.box_height + margin_y))
    right = min(valid_left + valid_width, math.ceil(view.box_left + view.box_width + margin_x))
    return top, left, bottom - top, right - left
