"""Pages of documents: Donut and Nougat shrink a page until it fits, and put it into the middle of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image
from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import placed
from energon_dali.decode.front_ends.fixed_size import HALF, IMAGENET_MEAN, IMAGENET_STD, require_one_size
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.resize_rules import ToShortestEdge, checked_size
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

_DARK = 200
"""Levels of gray below it are ink, after the darkest became 0 and the brightest 255."""


@dataclass(frozen=True, kw_only=True)
class Donut(FrontEnd):
    """Resizes the shorter side of a page, shrinks it until it fits, and pads it. Values: dtype[1, 3, height, width]."""

    size: tuple[int, int]
    """(height, width) of the result."""
    aligns_long_axis: bool = False
    """Whether a page is turned by 90 degrees clockwise if `size` is upright and it is not, or the reverse."""
    resizes: bool = True
    """Whether the shorter side is resized to that of `size`."""
    shrinks: bool = True
    """Whether a page that does not fit is shrunk."""
    pads: bool = True
    """Whether zeros are put around; if not, the result has the size of the page."""

    family: ClassVar[str] = "donut"
    processors: ClassVar[tuple[str, ...]] = ("DonutImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"crop_size", "pad_size"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_center_crop", False, "pages are not cropped")
        size = config.height_and_width("size", config.take_size("size", {"height": 2560, "width": 1920}, square=True))
        if isinstance(config.take("size"), (list, tuple)):  # files of before 2023: width, height
            size = size[::-1]
        return cls(**config.take_conversion(HALF, HALF, "bilinear", rgb=False), size=size, **_steps(config))

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = self._upright(height, width)
        rows, columns = self._fitting(*self._resized(rows, columns))
        return ImageLayout(height, width, (self._final_view(rows, columns),), 0, (rows, columns))

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        import torch

        if self._upright(*pixels.size) != pixels.size:
            pixels = Pixels(tensor=torch.rot90(pixels.tensor, 3, (-2, -1)))
        pixels = pixels.resized(*self._resized(*pixels.size), self.filter, self.resampling)
        fitting = self._fitting(*pixels.size)
        if fitting != pixels.size:
            pixels = self.shrunk(pixels, *fitting)
        return placed(pixels, self._final_view(*fitting), (0, 0, 0)).flatten(-2).unsqueeze(-3)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        return self.arrange(Pixels(tensor=pixels), layout)

    def shrunk(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """Returns a page that did not fit at the size that does."""
        # An oversight of the PIL backend: its number of NEAREST, 0, is taken for none.
        by_pil = self.values.arithmetic == "pil" and self.filter == "nearest"
        return pixels.resized(height, width, "bicubic" if by_pil else self.filter, self.resampling)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {}

    def _upright(self, height: int, width: int) -> tuple[int, int]:
        turns = self.aligns_long_axis and (self.size[0] - self.size[1]) * (height - width) < 0
        return (width, height) if turns else (height, width)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        return checked_size(ToShortestEdge(min(self.size)) if self.resizes else None, height, width)

    def _fitting(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = min(height, self.size[0]), min(width, self.size[1])
        if not self.shrinks or (rows, columns) == (height, width):
            return height, width
        if height > width:
            columns = int(width * rows / height)
        elif width > height:
            rows = int(height * columns / width)
        if min(rows, columns) < 1:
            raise DecodeError(
                f"A page of {width} x {height} pixels is too long to be shrunk to {self.size[1]} x {self.size[0]}"
            )
        return rows, columns

    def _final_view(self, height: int, width: int) -> View:
        if not self.pads:
            return View(height, width)
        below, right = self.size[0] - height, self.size[1] - width
        if min(below, right) < 0:
            raise DecodeError(
                f"A page of {width} x {height} pixels does not fit into {self.size[1]} x {self.size[0]}, and its "
                "processor does not shrink it. Set do_thumbnail=True in its configuration."
            )
        return View(height, width, canvas=self.size, position=(below // 2, right // 2))


@dataclass(frozen=True, kw_only=True)
class Nougat(Donut):
    """As Donut, without the margins of the page, which depend on its pixels."""

    crops_margin: bool = True
    """Whether the margins are cut off."""

    family: ClassVar[str] = "nougat"
    processors: ClassVar[tuple[str, ...]] = ("NougatImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = Donut.unused_keys | {"do_center_crop"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require_pil("it finds margins and shrinks pages otherwise")
        size = config.height_and_width("size", config.take_size("size", {"height": 896, "width": 672}, square=True))
        steps = _steps(config)
        crops = config.take_flag("do_crop_margin", True)
        if crops and not (steps["pads"] and steps["shrinks"]):
            raise config.error(
                "do_crop_margin=True needs do_thumbnail=True and do_pad=True: else sizes are not known in time"
            )
        return cls(
            **config.take_conversion(IMAGENET_MEAN, IMAGENET_STD, "bilinear", rgb=False),
            size=size,
            crops_margin=crops,
            **steps,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        if not self.crops_margin:
            return super().layout(width, height)
        return ImageLayout(height, width, (View(*self.size),), 0, self.size)

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        return super().arrange(_without_margin(pixels) if self.crops_margin else pixels, layout)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        return torch.stack([self.arrange(Pixels(tensor=image), layout) for image in pixels])

    def shrunk(self, pixels: Pixels, height: int, width: int) -> Pixels:
        image = pixels.image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
        return Pixels(tensor=Pixels(image=image).tensor.to(pixels.tensor.device))


def _steps(config: ProcessorConfig) -> dict[str, Any]:
    return {
        "aligns_long_axis": config.take_flag("do_align_long_axis", False),
        "resizes": config.take_flag("do_resize", True),
        "shrinks": config.take_flag("do_thumbnail", True),
        "pads": config.take_flag("do_pad", True),
    }


def _without_margin(pixels: Pixels) -> Pixels:
    """Returns the smallest part of a page that has all ink; the page if it is of one level of gray."""
    levels = np.array(pixels.image.convert("L"))
    darkest, brightest = levels.min(), levels.max()
    if darkest == brightest:
        return pixels
    rows, columns = np.nonzero((levels - darkest) / (brightest - darkest) * 255 < _DARK)
    box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
    return pixels.cropped(box, pixels.size)
