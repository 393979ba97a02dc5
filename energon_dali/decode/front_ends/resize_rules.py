"""Rules by which processors choose the size of a resized image, with the rounding of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from energon_dali.decode.front_ends.processor_config import LARGEST_AREA, ProcessorConfig
from energon_dali.errors import DecodeError


class ResizeRule(Protocol):
    """Chooses a size. Rules are frozen dataclasses, so that front ends which have one can be compared and stored."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) of the resized image; a side of 0 if the processor refuses the image.

        Args:
            height: Pixels of the image.
            width: Likewise.
        """


@dataclass(frozen=True, slots=True)
class ToSize:
    """Both sides are given."""

    height: int
    """Pixels."""
    width: int
    """Pixels."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class ToShortestEdge:
    """The shorter side is given, and the aspect ratio kept: the longer one is rounded down."""

    shortest_edge: int
    """Pixels."""
    round_up_to: int = 1
    """Both sides are then rounded up to a multiple of it (TextNet)."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        longer = int(self.shortest_edge * max(height, width) / min(height, width))
        sides = (self.shortest_edge, longer) if height <= width else (longer, self.shortest_edge)
        rows, columns = (math.ceil(side / self.round_up_to) * self.round_up_to for side in sides)
        return rows, columns


@dataclass(frozen=True, slots=True)
class ToEdges:
    """The shorter side is given, or less if the longer one would be too long (DETR)."""

    shortest_edge: int
    """Pixels of the shorter side."""
    longest_edge: int
    """Most pixels of the longer one."""
    multiple: int = 1
    """Both sides are then rounded to a multiple of it."""
    rounding: Literal["up", "down"] = "up"
    """Which way: up as by MaskFormer, or down as by YOLOS."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = self._keeping_aspect(height, width)
        if self.rounding == "down":
            return rows - rows % self.multiple, columns - columns % self.multiple
        return (
            math.ceil(rows / self.multiple) * self.multiple,
            math.ceil(columns / self.multiple) * self.multiple,
        )

    def _keeping_aspect(self, height: int, width: int) -> tuple[int, int]:
        shorter, longer = float(min(height, width)), float(max(height, width))
        edge, exact = self.shortest_edge, float(self.shortest_edge)
        if longer / shorter * edge > self.longest_edge:
            exact = self.longest_edge * shorter / longer
            edge = round(exact)
        # YOLOS computes the height of upright images even where the width is right already.
        if min(height, width) == edge and (self.rounding == "up" or height <= width):
            return height, width
        if width < height:
            return int(exact * height / width), edge
        return edge, int(exact * width / height)


@dataclass(frozen=True, slots=True)
class Within:
    """Both sides are as long as two limits allow, and the aspect ratio is kept."""

    max_height: int
    """Pixels."""
    max_width: int
    """Pixels."""
    round_up_to: int = 1
    """Both sides are then rounded up to a multiple of it (MaskFormer)."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        scale = min(self.max_height / height, self.max_width / width)
        rows, columns = (math.ceil(int(side * scale) / self.round_up_to) * self.round_up_to for side in (height, width))
        return rows, columns


@dataclass(frozen=True, slots=True)
class ToLongestEdge:
    """The longer side is given, and the shorter one is rounded to the nearest pixel (SAM)."""

    longest_edge: int
    """Pixels."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        scale = self.longest_edge * 1.0 / max(height, width)
        return int(height * scale + 0.5), int(width * scale + 0.5)


@dataclass(frozen=True, slots=True)
class ToMultiples:
    """Both sides are rounded down to a multiple (GLPN)."""

    multiple: int
    """Pixels."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        return height // self.multiple * self.multiple, width // self.multiple * self.multiple


@dataclass(frozen=True, slots=True)
class ToEdgeMultiples:
    """The shorter side is given, the longer one limited in proportion, and both rounded down to multiples (ViLT)."""

    shortest_edge: int
    """Pixels."""
    multiple: int
    """Pixels."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        longest = int(1333 / 800 * self.shortest_edge)
        scale = self.shortest_edge / min(height, width)
        rows: float = self.shortest_edge if height < width else scale * height
        columns: float = scale * width if height < width else self.shortest_edge
        if max(rows, columns) > longest:
            scale = longest / max(rows, columns)
            rows, columns = scale * rows, scale * columns
        return (
            int(rows + 0.5) // self.multiple * self.multiple,
            int(columns + 0.5) // self.multiple * self.multiple,
        )


@dataclass(frozen=True, slots=True)
class ToNearestMultiples:
    """Both sides are rounded to the nearest multiple, of a size or of the side whose scale is nearer to 1 (DPT)."""

    height: int
    """Pixels."""
    width: int
    """Pixels."""
    multiple: float
    """Pixels; a fraction of a pixel leaves the size as it is."""
    keep_aspect_ratio: bool
    """Whether both sides have one scale."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        scale_y, scale_x = self.height / height, self.width / width
        if self.keep_aspect_ratio:
            scale_x = scale_y = scale_x if abs(1 - scale_x) < abs(1 - scale_y) else scale_y
        rows, columns = (
            round(length / self.multiple) * self.multiple for length in (scale_y * height, scale_x * width)
        )
        return int(rows), int(columns)


def take_rule(config: ProcessorConfig, default: dict[str, int], *, square: bool) -> ResizeRule | None:
    """Returns the rule of a processor's size, as most processors read it; None if it does not resize.

    Args:
        config: Of the processor.
        default: Of size.
        square: Whether a size of one number is height and width; if not, it is the shortest edge.

    Raises:
        ConfigError: The size is invalid, or of another kind.
    """
    size = config.take_size("size", default, square=square)
    return rule_of(config, size) if config.take_flag("do_resize", True) else None


def rule_of(config: ProcessorConfig, size: dict[str, int]) -> ResizeRule:
    """Returns the rule of a size.

    Raises:
        ConfigError: It is of another kind.
    """
    if size.keys() == {"shortest_edge", "longest_edge"}:
        return ToEdges(size["shortest_edge"], size["longest_edge"])
    if size.keys() == {"shortest_edge"}:
        return ToShortestEdge(size["shortest_edge"])
    if size.keys() == {"max_height", "max_width"}:
        return Within(size["max_height"], size["max_width"])
    if size.keys() == {"height", "width"}:
        return ToSize(size["height"], size["width"])
    raise config.error(f"size={size} is neither a height and a width, nor edges, nor limits of both sides")


def checked_size(rule: ResizeRule | None, height: int, width: int) -> tuple[int, int]:
    """Returns the (height, width) of an image after resizing.

    Raises:
        DecodeError: A side has no pixels left, or far too many.
    """
    rows, columns = (height, width) if rule is None else rule.size(height, width)
    if min(rows, columns) < 1:
        raise DecodeError(
            f"An image of {width} x {height} pixels would be resized to {columns} x {rows}, as its processor would. "
            "Its aspect ratio is too extreme for the size of the configuration, or the image is too small."
        )
    if rule is not None and rows * columns > max(LARGEST_AREA, height * width):
        raise DecodeError(
            f"An image of {width} x {height} pixels would be enlarged to {columns} x {rows}, more than "
            f"{LARGEST_AREA:,} pixels: its aspect ratio is too extreme. Leave it out, or crop it first."
        )
    return rows, columns
