"""GLM-5 and Muse Glimmer: patches of images whose size follows from a number of tokens."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.lanczos import resized_by_torch
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.padded_blocks import view_in_blocks, whole_blocks
from energon_dali.decode.front_ends.processor_config import LARGEST_AREA, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL, check_whole_blocks, take_patches
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Glm5Next(Qwen2VL):
    """GLM-5: an image keeps its size if it may, with black below and to the right up to whole merge blocks.

    `min_pixels` and `max_pixels` are those of all frames of a temporal patch.
    """

    image_token: str = "<|image|>"
    """Stands for an image in the text, and for each of its features after `expand_text`."""

    family: ClassVar[str] = "glm5_next"
    processors: ClassVar[tuple[str, ...]] = ("Glm5NextImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = Qwen2VL.unused_keys | {"size", "patch_expand_factor"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        patches = take_patches(config, *cls.default_patches)
        block = patches["temporal_patch_size"] * (patches["patch_size"] * patches["merge_size"]) ** 2
        fewest = config.take_integer("min_image_tokens", 16) * block
        if fewest > LARGEST_AREA:
            raise config.error(
                f"min_image_tokens enlarges every image to {fewest:,} pixels, more than {LARGEST_AREA:,}"
            )
        return cls(
            **config.take_conversion(cls.default_mean, cls.default_std, "bicubic"),
            min_pixels=fewest,
            max_pixels=config.take_integer("max_image_tokens", 8000) * block,
            **patches,
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        view = View(height, width)
        if self.resizes:
            canvas = self.resized(height, width)
            view = view_in_blocks(canvas, height, width, self.temporal_patch_size, self.min_pixels)
        else:
            check_whole_blocks(height, width, self.patch_size * self.merge_size)
        rows, columns = (side // self.patch_size for side in view.canvas_size)
        return ImageLayout(height, width, (view,), rows * columns // self.merge_size**2, (1, rows, columns))

    def resized(self, height: int, width: int) -> tuple[int, int]:
        return whole_blocks(
            self.temporal_patch_size,
            height,
            width,
            self.temporal_patch_size,
            self.patch_size * self.merge_size,
            self.min_pixels,
            self.max_pixels,
        )


@dataclass(frozen=True, kw_only=True)
class MuseGlimmer(Qwen2VL):
    """Muse Glimmer: whole tokens in the grid that is closest to the image's shape, patches row by row.

    A patch has its frames one after the other, each with all channels.
    """

    max_tokens: int = 4096
    """Most tokens of an image ("max_image_tokens")."""
    image_token: str = "<|patch|>"
    start_token: str = "<|image_start|>"
    """Text before the tokens of an image. The processor does not count it, nor the one after them."""
    end_token: str = "<|image_end|>"
    """Text after them."""

    family: ClassVar[str] = "muse_glimmer"
    processors: ClassVar[tuple[str, ...]] = ("MuseGlimmerImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    float_backends: ClassVar[frozenset[str]] = frozenset()
    row_by_row: ClassVar[bool] = True
    unused_keys: ClassVar[frozenset[str]] = Qwen2VL.unused_keys | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(
            **config.take_conversion(HALF, HALF, "lanczos"),
            min_pixels=1,
            max_pixels=LARGEST_AREA,
            **take_patches(config, 14),
            max_tokens=config.take_integer("max_image_tokens", 4096),
            image_token=config.outer_text("image_token", cls.image_token),
            start_token=config.outer_text("image_start_token", cls.start_token),
            end_token=config.outer_text("image_end_token", cls.end_token),
        )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        block = self.patch_size * self.merge_size
        rows, columns = height / block, width / block
        ratio = columns / rows
        if rows * columns > self.max_tokens:
            rows = (self.max_tokens / ratio) ** 0.5
            columns = rows * ratio
        # In the order of a set, as in the processor: it decides between equally close grids.
        near = set(itertools.product((math.floor(rows), math.ceil(rows)), (math.floor(columns), math.ceil(columns))))
        allowed = [grid for grid in list(near) if min(grid) >= 1 and grid[0] * grid[1] <= self.max_tokens]
        if not allowed:
            allowed = [(max(1, round(rows)), max(1, round(columns)))]
        best = min(allowed, key=lambda grid: abs(grid[0] / grid[1] - height / width))
        return best[0] * block, best[1] * block

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        return super().arrange(self._resampled(pixels, layout), layout)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        return super().arrange_alike(self._resampled(Pixels(tensor=pixels), layout).tensor, layout)

    def _resampled(self, pixels: Pixels, layout: ImageLayout) -> Pixels:
        """Returns the pixels at the size of the view, by torch's Lanczos filter where that is asked for."""
        (view,) = layout.views
        if self.filter != "lanczos" or self.resampling != "torch":
            return pixels
        return resized_by_torch(pixels, view.height, view.width)

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        values = self.values.convert(pixels, self.torch_dtype, channel_axis=1)  # dtype[patches, 3, patch_size ** 2]
        out.view(len(pixels), self.temporal_patch_size, -1).copy_(values.flatten(1)[:, None])

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.start_token}{self.image_token * layout.num_features}{self.end_token}"

    def text_tokens(self, layout: ImageLayout) -> int:
        return layout.num_tokens + 2
