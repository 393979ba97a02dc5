"""Molmo 2: a thumbnail, and crops of a canvas that overlap, as patches; the model pools them by indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES, grids
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig, is_integer
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.siglip2 import TiledPixelPatches
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

_FEATURE = "<im_patch>"
_MOST_MARGIN = 64
"""Largest number of overlap_margins."""


@dataclass(frozen=True, kw_only=True)
class Molmo2(TiledPixelPatches):
    """Resizes an image to one crop, and to a canvas of crops that overlap by margins. Pixels are interpolated by torch,
    without widening the filter.

    `layout.grid` is (rows, columns) of crops. Values: dtype[patches, patch_size * patch_size * 3], crop by crop, the
    thumbnail first; `batch_vision` returns the crops of all images one after the other, and the patches of each
    feature.
    """

    crop_size: int = 378
    """Pixels of a crop's side ("size")."""
    patch_size: int = 14
    """Pixels of a patch's side."""
    max_crops: int = 8
    """Most crops of a canvas."""
    overlap_margins: tuple[int, int] = (4, 4)
    """Patches by which crops overlap: at the left and top, at the right and bottom."""
    pooling_size: tuple[int, int] = (2, 2)
    """(height, width) in patches of what becomes one feature."""
    col_tokens: bool = True
    """Whether a marker ends each row of features of the canvas ("image_use_col_tokens")."""
    thumbnail_col_tokens: bool = True
    """Likewise of the thumbnail ("use_single_crop_col_tokens")."""
    thumbnail_start: str = "<low_res_im_start>"
    """Text before the features of the thumbnail."""
    image_token: str = "<|image|>"
    """Placeholder of an image in the text."""
    feature_token: str = _FEATURE
    """Placeholder of a feature in the expanded text."""

    family: ClassVar[str] = "molmo2"
    processors: ClassVar[tuple[str, ...]] = ("Molmo2ImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_token_pooling", "image_grids", "image_num_crops")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize"}
    separate_placeholder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._window < 1 or self.crop_size % self.patch_size:
            raise ConfigError(
                f"Molmo2(crop_size={self.crop_size}, patch_size={self.patch_size}, "
                f"overlap_margins={self.overlap_margins}) is invalid: a crop must be whole patches, and more than its "
                "margins."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        side = config.take_square("size", 378)
        columns, single = config.outer_flag("image_use_col_tokens", True), "use_single_crop_col_tokens"
        starts = config.outer_flag("use_single_crop_start_token", True)
        conversion = config.take_conversion(HALF, HALF, "bilinear")
        if conversion["filter"] not in ("bilinear", "bicubic"):
            raise config.error(f"resample={conversion['filter']} is not a filter that torch interpolates with")
        return cls(
            **conversion,
            crop_size=side,
            patch_size=config.take_integer("patch_size", 14, most=LARGEST_PATCH),
            max_crops=config.take_integer("max_crops", 8, most=MOST_TILES),
            overlap_margins=_pair(config, "overlap_margins", (4, 4), 0, _MOST_MARGIN),
            pooling_size=_pair(config, "pooling_size", (2, 2), 1, MOST_MERGED),
            col_tokens=columns,
            thumbnail_col_tokens=config.outer_flag(single, columns) if single in config.outer else columns,
            thumbnail_start=cls.thumbnail_start if starts else "<im_start>",
            image_token=config.outer_text("image_token", cls.image_token),
        )

    @property
    def _side(self) -> int:
        """Patches of a crop's side."""
        return self.crop_size // self.patch_size

    @property
    def _window(self) -> int:
        """Patches of a crop's side without its margins."""
        return self._side - sum(self.overlap_margins)

    def layout(self, width: int, height: int) -> ImageLayout:
        window, margin = self._window * self.patch_size, sum(self.overlap_margins) * self.patch_size
        rows, columns = _choose(height - margin, width - margin, window, self.max_crops)
        side = self.crop_size
        canvas = View(rows * window + margin, columns * window + margin, widened=False, emitted=False)
        crops = [
            View(side, side, source=1, box=(left, top, left + side, top + side))
            for top in range(0, rows * window, window)
            for left in range(0, columns * window, window)
        ]
        views = (View(side, side, widened=False), canvas, *crops)
        features, markers = self._counts((rows, columns))
        return ImageLayout(height, width, views, features + markers, (rows, columns), num_markers=markers)

    def feature_grids(self, grid: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Returns (rows, columns) of the features of the thumbnail, and of the canvas of a grid of crops."""
        tall, wide = (crops * self._window + sum(self.overlap_margins) for crops in grid)
        pool_rows, pool_columns = self.pooling_size
        return (
            math.ceil(self._side / pool_rows),
            math.ceil(self._side / pool_columns),
            math.ceil(tall / pool_rows),
            math.ceil(wide / pool_columns),
        )

    def _counts(self, grid: tuple[int, ...]) -> tuple[int, int]:
        """Returns the numbers of features and of markers in the text."""
        small_rows, small_columns, rows, columns = self.feature_grids(grid)
        markers = 4 + small_rows * self.thumbnail_col_tokens + rows * self.col_tokens
        return small_rows * small_columns + rows * columns, markers

    def image_text(self, layout: ImageLayout) -> str:
        small_rows, small_columns, rows, columns = self.feature_grids(layout.grid)
        small = self.feature_token * small_columns + "<im_col>" * self.thumbnail_col_tokens
        large = self.feature_token * columns + "<im_col>" * self.col_tokens
        return f"{self.thumbnail_start}{small * small_rows}<im_end><im_start>{large * rows}<im_end>"

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        values: Any = self.concatenated(images)
        pooling: list[torch.Tensor] = []
        start = 0
        for image in images:
            rows, columns = image.layout.grid
            indices = _pooling(rows, columns, self._side, self.overlap_margins, self.pooling_size)
            pooling.append(torch.from_numpy(np.where(indices >= 0, indices + start, -1).astype(np.int32)))
            start += image.rows
        return {
            "pixel_values": values.view(-1, self._side**2, values.shape[1]),
            "image_token_pooling": torch.cat(pooling),
            "image_grids": torch.tensor([self.feature_grids(image.layout.grid) for image in images]),
            "image_num_crops": torch.tensor([image.rows // self._side**2 for image in images]),
        }


def _pair(config: ProcessorConfig, name: str, default: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """Returns two whole numbers.

    Raises:
        ConfigError: There are others, or one is out of range.
    """
    value = config.take(name, default)
    if (
        not isinstance(value, (list, tuple))
        or len(value) != 2
        or not all(is_integer(number) and least <= number <= most for number in value)
    ):
        raise config.invalid(name, value, f"two whole numbers between {least} and {most}")
    return int(value[0]), int(value[1])


@lru_cache(maxsize=4096)
def _choose(height: int, width: int, window: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid in which an image is least enlarged, else least reduced.

    The processor compares in float32, and takes the first of those that are equal.
    """
    candidates = sorted(grids(1, most), key=lambda grid: (grid[0] * grid[1], grid[0]))
    with np.errstate(divide="ignore"):
        scales = (np.array(candidates, np.float32) * np.float32(window)) / np.array([height, width], np.float32)
    required = scales.min(1)
    if (required < 1).all():
        return candidates[int(required.argmax())]
    return candidates[int(np.where(required < 1, np.float32(10e9), required).argmin())]


@lru_cache(maxsize=256)
def _pooling(rows: int, columns: int, side: int, margins: tuple[int, int], pool: tuple[int, int]) -> NDArray[np.int32]:
    """Returns the patches of each feature of an image, -1 where there is none: int32[features, patches of one].

    Patches are counted through the thumbnail and the crops. Where crops overlap, each patch of the canvas is that of
    the crop in whose window it is. Shared: do not change it.
    """
    left, right = margins
    own = np.arange(side * side, dtype=np.int32).reshape(side, side)
    canvas = np.arange(rows * columns * side * side, dtype=np.int32).reshape(rows, columns, side, side)
    if left:
        canvas[1:, :, :left, :] = -1
        canvas[:, 1:, :, :left] = -1
    if right:
        canvas[:-1, :, -right:, :] = -1
        canvas[:, :-1, :, -right:] = -1
    window = side - left - right
    kept = canvas.transpose(0, 2, 1, 3).reshape(-1)
    whole = kept[kept >= 0].reshape(rows * window + left + right, columns * window + left + right)
    made = np.concatenate([_pooled(own, pool), np.where((large := _pooled(whole, pool)) >= 0, large + side * side, -1)])
    made.setflags(write=False)
    return made.astype(np.int32, copy=False)


def _pooled(indices: NDArray[np.int32], pool: tuple[int, int]) -> NDArray[np.int32]:
    """Returns the indices of blocks, row by row: int32[blocks, indices of one], with -1 around grids of other sizes."""
    missing = [-length % block for length, block in zip(indices.shape, pool, strict=True)]
    padded = np.pad(indices, [(gap // 2, (gap + 1) // 2) for gap in missing], constant_values=-1)
    rows, columns = padded.shape[0] // pool[0], padded.shape[1] // pool[1]
    blocks = padded.reshape(rows, pool[0], columns, pool[1]).transpose(0, 2, 1, 3)
    return np.asarray(blocks.reshape(rows * columns, -1), np.int32)
