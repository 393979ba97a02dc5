"""LFM2-VL: patches of tiles and a thumbnail for large images, of one resized image for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES, closest_of, grids_of_a_set
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.siglip2 import TiledPixelPatches
from energon_dali.errors import ConfigError, DecodeError

_MOST_TOKENS = 1 << 14
"""Largest number of tokens of an image; each tile of a batch takes as many patches."""


@dataclass(frozen=True, kw_only=True)
class Lfm2VL(TiledPixelPatches):
    """Resizes a large image to a grid of tiles and to a thumbnail; others within a range of tokens.

    `layout.grid` is (rows, columns) of tiles. Values: dtype[patches, patch_size * patch_size * 3], the patches of each
    tile row by row; `batch_vision` returns the tiles, padded to the same number of patches.
    """

    downsample_factor: int = 2
    """Patches per side of a token."""
    splits: bool = True
    """Whether large images are cut into tiles."""
    min_tiles: int = 2
    """Fewest tiles of a grid."""
    max_tiles: int = 10
    """Most tiles of a grid."""
    use_thumbnail: bool = True
    """Whether the whole image follows the tiles of a grid with several."""
    min_image_tokens: int = 64
    """Fewest tokens of an image that is not cut, and of a thumbnail."""
    max_image_tokens: int = 256
    """Most tokens of these."""
    tile_size: int = 512
    """Pixels of a tile's side."""
    max_pixels_tolerance: float = 2.0
    """How many times as large as max_image_tokens allows an image may be before it is cut."""
    returns_rows: bool = False
    """Whether `batch_vision` returns grids and sizes too: image_rows, image_cols, image_sizes."""
    start_token: str = "<|image_start|>"
    """Text before the tokens of an image."""
    end_token: str = "<|image_end|>"
    """Text after them."""
    thumbnail_token: str = "<|img_thumbnail|>"
    """Text before those of a thumbnail."""
    image_token: str = "<image>"

    family: ClassVar[str] = "lfm2_vl"
    processors: ClassVar[tuple[str, ...]] = ("Lfm2VlImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "spatial_shapes", "pixel_attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size", "do_resize", "max_num_patches"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_tiles > self.max_tiles or self.min_image_tokens > self.max_image_tokens:
            raise ConfigError(
                f"Lfm2VL(min_tiles={self.min_tiles}, max_tiles={self.max_tiles}, "
                f"min_image_tokens={self.min_image_tokens}, max_image_tokens={self.max_image_tokens}) is invalid: the "
                "fewest are more than the most."
            )
        if self.tile_size % self.patch_size:
            raise ConfigError(
                f"Lfm2VL(tile_size={self.tile_size}, patch_size={self.patch_size}) is invalid: a tile must be whole "
                "patches."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_pad", True, "tiles of different sizes form no batch without padding")
        return cls(
            **config.take_conversion(HALF, HALF, "bilinear", rgb=False),
            patch_size=config.take_integer("encoder_patch_size", 16, most=LARGEST_PATCH),
            downsample_factor=config.take_integer("downsample_factor", 2, most=MOST_MERGED),
            splits=config.take_flag("do_image_splitting", True),
            min_tiles=config.take_integer("min_tiles", 2, most=MOST_TILES),
            max_tiles=config.take_integer("max_tiles", 10, most=MOST_TILES),
            use_thumbnail=config.take_flag("use_thumbnail", True),
            min_image_tokens=config.take_integer("min_image_tokens", 64, most=_MOST_TOKENS),
            max_image_tokens=config.take_integer("max_image_tokens", 256, most=_MOST_TOKENS),
            tile_size=config.take_integer("tile_size", 512, most=LARGEST_SIDE),
            max_pixels_tolerance=config.take_number("max_pixels_tolerance", 2.0),
            returns_rows=config.take_flag("return_row_col_info", False),
            start_token=config.outer_text("image_start_token", cls.start_token),
            end_token=config.outer_text("image_end_token", cls.end_token),
            thumbnail_token=config.outer_text("image_thumbnail_token", cls.thumbnail_token),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    @property
    def max_num_patches(self) -> int:
        """Patches of each tile in a batch."""
        tile = (self.tile_size // self.patch_size) ** 2 if self.splits else 0
        return max(self.max_image_tokens * self.downsample_factor**2, tile)

    def layout(self, width: int, height: int) -> ImageLayout:
        whole = View(*self._resized(height, width))
        side, grid = self.tile_size, (1, 1)
        views: tuple[View, ...] = (whole,)
        if self.splits and not self.min_tiles == self.max_tiles == 1 and self._is_large(height, width):
            columns, rows = closest_of(grids_of_a_set(self.min_tiles, self.max_tiles), width, height, side * side)
            grid = (rows, columns)
            views = (View(side * grid[0], side * grid[1], tile=(side, side)),)
            if self.use_thumbnail and grid != (1, 1):
                views = (*views, whole)
        if any(math.prod(view.tile_size) > self.max_num_patches * self.patch_size**2 for view in views):
            raise DecodeError(f"{width} x {height} pixels become more patches than a batch has room for")
        tiles = grid[0] * grid[1]
        features, markers = self._tokens(whole.height, whole.width), 2
        if tiles > 1:
            thumbnails = len(views) - 1
            features = tiles * self._tile_tokens + thumbnails * features
            markers += tiles + thumbnails
        return ImageLayout(height, width, views, features + markers, grid, num_markers=markers)

    @property
    def _tile_tokens(self) -> int:
        return self._tokens(self.tile_size, self.tile_size)

    def _tokens(self, height: int, width: int) -> int:
        rows, columns = (math.ceil(side // self.patch_size / self.downsample_factor) for side in (height, width))
        return rows * columns

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) of an image that is not cut, in whole tokens within their range."""
        block = self.patch_size * self.downsample_factor
        fewest, most = self.min_image_tokens * block**2, self.max_image_tokens * block**2
        tall, wide = max(block, round(height / block) * block), max(block, round(width / block) * block)
        if tall * wide > most:
            shrink = math.sqrt((height * width) / most)
            tall = max(block, math.floor(height / shrink / block) * block)
            wide = max(block, math.floor(width / shrink / block) * block)
        elif tall * wide < fewest:
            grow = math.sqrt(fewest / (height * width))
            tall, wide = math.ceil(height * grow / block) * block, math.ceil(width * grow / block) * block
        return tall, wide

    def _is_large(self, height: int, width: int) -> bool:
        block = self.patch_size * self.downsample_factor
        tall, wide = (max(self.patch_size, round(side / block) * block) for side in (height, width))
        most = self.max_image_tokens * self.patch_size**2 * self.downsample_factor**2
        return tall * wide > most * self.max_pixels_tolerance

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        whole = self.image_token * self._tokens(*self._resized(layout.height, layout.width))
        if rows * columns == 1:
            return f"{self.start_token}{whole}{self.end_token}"
        tile = self.image_token * self._tile_tokens
        tiles = [f"<|img_row_{row + 1}_col_{column + 1}|>{tile}" for row in range(rows) for column in range(columns)]
        thumbnail = f"{self.thumbnail_token}{whole}" if len(layout.views) > 1 else ""
        return f"{self.start_token}{''.join(tiles)}{thumbnail}{self.end_token}"

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        shapes = [
            [side // self.patch_size for side in view.tile_size]
            for image in images
            for view in image.layout.views
            for _ in range(view.num_tiles)
        ]
        values: Any = self.concatenated(images)
        tiles = values.new_zeros((len(shapes), self.max_num_patches, values.shape[1]))
        mask = torch.zeros(tiles.shape[:2], dtype=torch.int32, device=values.device)
        start = 0
        for tile, row, (rows, columns) in zip(tiles, mask, shapes, strict=True):
            count = rows * columns
            tile[:count] = values[start : start + count]
            row[:count] = 1
            start += count
        batch = {
            "pixel_values": tiles,
            "pixel_attention_mask": mask,
            "spatial_shapes": torch.tensor(shapes, dtype=torch.int64),
        }
        if self.returns_rows:
            batch["image_rows"] = torch.tensor([image.layout.grid[0] for image in images])
            batch["image_cols"] = torch.tensor([image.layout.grid[1] for image in images])
            sizes = [self._resized(image.layout.height, image.layout.width) for image in images]
            batch["image_sizes"] = torch.tensor(sizes)
        return batch
