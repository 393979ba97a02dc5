"""SigLIP 2 NaFlex: as many patches as fit a budget, with the image's aspect ratio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_pixel_patches
from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.value_memory import empty_values

if TYPE_CHECKING:
    import torch


_MOST_PATCHES = 1 << 14
"""Largest max_num_patches; each image of a batch takes as many."""
_TOLERANCE = 1e-5
_LARGEST_SCALE = 100.0


@dataclass(frozen=True, kw_only=True)
class PixelPatches(FrontEnd):
    """Cuts an image of whole patches into them, row by row; `batch_vision` pads them to the same number.

    Values: dtype[patches, patch_size * patch_size * 3], the channel of each pixel last.
    """

    patch_size: int = 16
    """Pixels of a patch's side."""

    channels_last: ClassVar[bool] = True

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        (view,) = layout.views
        resized = pixels.resized(view.height, view.width, self.filter, self.resampling)
        return cut_pixel_patches(resized.tensor, self.patch_size)  # uint8[patches, patch_size ** 2, 3]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        from energon_dali.kernels.merge_patches import merge_patches

        (view,) = layout.views
        resized = Pixels(tensor=pixels).resized(view.height, view.width, self.filter, self.resampling).tensor
        cut: torch.Tensor = merge_patches(resized[:, None], (self.patch_size, self.patch_size), channels_last=True)
        return cut.flatten(3, 4).squeeze(1)

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return len(pixels), 3 * self.patch_size**2

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        self.values.convert(pixels, self.torch_dtype, channel_axis=2, out=out.view(pixels.shape))

    def padded(self, images: Sequence[VisionInput], most: int) -> torch.Tensor:
        """Returns the values of images as dtype[images, most, values], with zeros after those of each image.

        Args:
            images: At least one.
            most: Patches of each image in the result.
        """
        shape = (len(images), most, 3 * self.patch_size**2)
        values = empty_values(shape, self.torch_dtype, images[0].pixels.device)
        for image, rows in zip(images, values, strict=True):
            image.front_end.finish(image.pixels, image.layout, rows[: image.rows])
            rows[image.rows :] = 0
        return values


@dataclass(frozen=True, kw_only=True)
class TiledPixelPatches(PixelPatches):
    """Cuts each tile of an image into patches, tile by tile."""

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        import torch

        parts = [cut_pixel_patches(tile, self.patch_size) for tile in self._tiles(pixels, layout)]
        return torch.cat(parts)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        from energon_dali.kernels.merge_patches import merge_patches

        side, parts = (self.patch_size, self.patch_size), []
        for tile in self._tiles(Pixels(tensor=pixels), layout):
            cut: torch.Tensor = merge_patches(tile[:, None].contiguous(), side, channels_last=True)
            parts.append(cut.flatten(3, 4).squeeze(1))
        return torch.cat(parts, 1)

    def _tiles(self, pixels: Pixels, layout: ImageLayout) -> Iterator[torch.Tensor]:
        for view, canvas in self.canvases(pixels, layout):
            height, width = view.tile_size
            for top in range(0, view.canvas_size[0], height):
                for left in range(0, view.canvas_size[1], width):
                    yield canvas[..., top : top + height, left : left + width]


@dataclass(frozen=True, kw_only=True)
class Siglip2(PixelPatches):
    """Resizes an image to the most patches that are allowed, and cuts it into them.

    `layout.grid` is (rows, columns) of patches.
    """

    max_num_patches: int = 256
    """Most patches of an image, and the patches of each image in a batch."""

    family: ClassVar[str] = "siglip2"
    processors: ClassVar[tuple[str, ...]] = ("Siglip2ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "images that are not resized are not whole patches")
        return cls(
            **config.take_conversion(HALF, HALF, "bilinear", rgb=False),
            patch_size=config.take_integer("patch_size", 16, most=LARGEST_PATCH),
            max_num_patches=config.take_integer("max_num_patches", 256, most=_MOST_PATCHES),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = _patch_grid(height, width, self.patch_size, self.max_num_patches)
        view = View(rows * self.patch_size, columns * self.patch_size)
        return ImageLayout(height, width, (view,), rows * columns, (rows, columns))

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        values = self.padded(images, self.max_num_patches)
        mask = torch.zeros(values.shape[:2], dtype=torch.int32, device=values.device)
        for image, row in zip(images, mask, strict=True):
            row[: image.rows] = 1
        shapes = torch.tensor([image.layout.grid for image in images], dtype=torch.int64)
        return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}


@lru_cache(maxsize=4096)
def _patch_grid(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of patches: those of the largest scale that a bisection finds to be allowed.

    The result depends on each step of the bisection, so its bounds and its end are those of the processor.
    """
    lowest, highest = _TOLERANCE / 10, _LARGEST_SCALE
    while highest - lowest >= _TOLERANCE:
        scale = (lowest + highest) / 2
        if max(1, math.ceil(height * scale / patch)) * max(1, math.ceil(width * scale / patch)) <= most:
            lowest = scale
        else:
            highest = scale
    return max(1, math.ceil(height * lowest / patch)), max(1, math.ceil(width * lowest / patch))
