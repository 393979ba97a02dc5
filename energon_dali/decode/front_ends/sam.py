"""Images of SAM: the longer side is resized to a length, and the rest of a square is zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import IMAGENET_MEAN, IMAGENET_STD, require_one_size
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.resize_rules import ToLongestEdge, checked_size
from energon_dali.errors import DecodeError


@dataclass(frozen=True, kw_only=True)
class Sam(FrontEnd):
    """Resizes the longer side to a length, and adds zeros below and to the right.

    Values: dtype[1, 3, height, width]. A batch has the `original_sizes` of its images and their `reshaped_input_sizes`,
    before zeros were added.
    """

    rule: ToLongestEdge | None = None
    """Chooses the size of the resized image; None does not resize."""
    pad_size: tuple[int, int] | None = None
    """(height, width) with the zeros; None adds none."""

    family: ClassVar[str] = "sam"
    processors: ClassVar[tuple[str, ...]] = ("SamImageProcessor",)
    fill: ClassVar[tuple[int, int, int] | None] = None

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_center_crop", False, "images are not cropped")
        for name in ("crop_size", "mask_size", "mask_pad_size"):
            config.take(name)
        size = config.take_size("size", {"longest_edge": 1024})
        pad_size = config.take_size("pad_size", {"height": 1024, "width": 1024}, square=True)
        resizes, pads = config.take_flag("do_resize", True), config.take_flag("do_pad", True)
        if resizes and "longest_edge" not in size:
            raise config.error(f"size={size} has no longest_edge")
        return cls(
            **config.take_conversion(IMAGENET_MEAN, IMAGENET_STD, "bilinear", rgb=True),
            rule=ToLongestEdge(size["longest_edge"]) if resizes else None,
            pad_size=config.height_and_width("pad_size", pad_size) if pads else None,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = checked_size(self.rule, height, width)
        if self.pad_size is not None and (rows > self.pad_size[0] or columns > self.pad_size[1]):
            raise DecodeError(
                f"An image of {width} x {height} pixels is resized to {columns} x {rows}, more than pad_size, "
                f"{self.pad_size[1]} x {self.pad_size[0]}. Give a larger pad_size, or a smaller size."
            )
        return ImageLayout(height, width, (View(rows, columns, canvas=self.pad_size),), 0, (rows, columns))

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {
            "original_sizes": [(image.layout.height, image.layout.width) for image in images],
            "reshaped_input_sizes": [image.layout.grid for image in images],
        }
