"""Nemotron-H Omni: patches of images that are resampled as values, which may exceed those of bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.computed_values import ComputedValues
from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import (
    CROP_AND_PAD,
    LARGEST_AREA,
    LARGEST_COUNT,
    ProcessorConfig,
)
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.resize_rules import ToSize, checked_size

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class NemotronOmni(ComputedValues):
    """Resizes an image to whole blocks of patches within a range, and cuts it into patches row by row.

    `layout.grid` is (rows, columns) of patches. Values: dtype[patches, 3 * patch_size ** 2]. If `max_model_len` has no
    room for `min_num_patches` of each image of a call, the processor's limit grows with their number; here it is that
    of one image.
    """

    patch_size: int = 16
    """Pixels of a patch's side."""
    merge_size: int = 2
    """Patches per side that become one token: 1 / downsample_ratio."""
    min_patches: int = 1024
    """Fewest patches of an image ("min_num_patches")."""
    max_patches: int = 13312
    """Most patches, of which the context length allows fewer ("max_num_patches", "max_model_len")."""
    image_token: str = "<image>"
    image_start_token: str = "<img>"
    """Text before the tokens of an image."""
    image_end_token: str = "</img>"
    """Text after them."""

    family: ClassVar[str] = "nemotron_omni"
    processors: ClassVar[tuple[str, ...]] = ("NemotronH_Omni_Reasoning_V3ImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_hw")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size", "do_resize", "_downsample_factor"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        mean, std = config.take("norm_mean", CLIP_MEAN), config.take("norm_std", CLIP_STD)  # older names
        fields = config.take_conversion(mean, std, "bicubic")
        if fields["filter"] not in ("bilinear", "bicubic"):
            raise config.error(f"resample={config.take('resample')} is not supported: it must be 2 or 3")
        merged = round(1 / config.take_number("downsample_ratio", 0.5, least=1 / MOST_MERGED, most=1.0))
        patch = config.take_integer("patch_size", 16, most=LARGEST_PATCH)
        fewest = config.take_integer("min_num_patches", 1024)
        if fewest * patch**2 > LARGEST_AREA:
            raise config.error(f"min_num_patches={fewest} of patch_size={patch} enlarge images to too many pixels")
        limit = config.take_integer("max_num_patches", 13312, least=0)
        most = max((config.take_integer("max_model_len", 16384, most=LARGEST_COUNT) - 4) * merged**2, fewest)
        return cls(
            **fields,
            patch_size=patch,
            merge_size=merged,
            min_patches=fewest,
            max_patches=max(min(most, limit or most), fewest),
            **config.take_texts(cls, "image_token", "image_start_token", "image_end_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = self._grid(height, width)
        tokens = rows * columns // self.merge_size**2
        size = ToSize(rows * self.patch_size, columns * self.patch_size)
        view = View(*checked_size(size, height, width))
        return ImageLayout(height, width, (view,), tokens + 2, (rows, columns), num_markers=2)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Returns (rows, columns) of patches."""
        rows, columns = round(height / self.patch_size + 0.5), round(width / self.patch_size + 0.5)
        shrink = min(math.sqrt(self.max_patches / (rows * columns)), 1.0)
        rows, columns = math.floor(shrink * rows), math.floor(shrink * columns)
        if rows and columns and self.max_patches > self.min_patches > rows * columns:
            grow = math.sqrt(self.min_patches / (rows * columns))
            rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
        rows = self._whole(rows, columns)
        return rows, self._whole(columns, rows)

    def _whole(self, length: int, other: int) -> int:
        """Returns a side of a grid in whole blocks, rounded up if the other side allows that many patches."""
        rest = length % self.merge_size
        if not rest:
            return length
        if (length + self.merge_size - rest) * other <= self.max_patches:
            return length + self.merge_size - rest
        return max(self.merge_size, length - rest)

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        whole = pixels.resized(layout.height, layout.width, self.filter, self.resampling).planes()
        rows, columns = layout.grid
        values = self.compute(whole.cpu()).reshape(3, rows, self.patch_size, columns, self.patch_size)
        return values.permute(1, 3, 0, 2, 4).reshape(rows * columns, -1).to(whole.device)

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.nn.functional import interpolate

        rows, columns = self._grid(*pixels.shape[1:])
        size = (rows * self.patch_size, columns * self.patch_size)
        values = pixels.to(torch.float32)
        if size != tuple(pixels.shape[1:]):
            values = interpolate(values[None], size=size, mode=self.filter, align_corners=False, antialias=True)[0]
        factor, mean, std = self.values.rescale, self.values.mean, self.values.std
        if mean is None or std is None:
            return values if factor is None else values * factor
        scale = 1.0 if factor is None else 1.0 / factor
        first, second = (torch.tensor(given)[:, None, None] * scale for given in (mean, std))
        return (values - first) / second

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.image_start_token}{self.image_token * layout.num_features}{self.image_end_token}"

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"image_grid_hw": [image.layout.grid for image in images]}
