"""Step 3.7: a square with the whole image, and tiles whose size in the image depends on its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.deepseek_ocr2 import SquareAndTiles
from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import IMAGE, ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig
from energon_dali.errors import DecodeError

_NARROW = 32
"""Images that are narrower and longer than 4 to 1 are put into the corner of a black square."""


@dataclass(frozen=True, kw_only=True)
class Step3p7(SquareAndTiles):
    """Resizes an image to a square, and cuts a large or long one into windows, each of which becomes a tile."""

    side: int = 728
    """Pixels of the square's side ("size")."""
    tile_size: int = 504
    """Pixels of a tile's side ("patch_size")."""
    max_side: int = 3024
    """Most pixels of a side before windows are cut ("max_image_size")."""
    stride: int = 56
    """Pixels of a token's side: vision_patch_size * downsampler_stride."""
    image_token: str = "<im_patch>"

    family: ClassVar[str] = "step3p7"
    processors: ClassVar[tuple[str, ...]] = ("Step3p7ImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        patch = config.take_integer("vision_patch_size", 14, most=LARGEST_SIDE)
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bilinear"),
            side=config.take_square("size", 728),
            tile_size=config.take_integer("patch_size", 504, most=LARGEST_SIDE),
            max_side=config.take_integer("max_image_size", 3024, most=LARGEST_SIDE),
            stride=patch * config.take_integer("downsampler_stride", 4, most=LARGEST_SIDE),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views: list[View] = []
        source, tall, wide = IMAGE, height, width
        if min(tall, wide) < _NARROW and max(wide / tall, tall / wide) > 4:
            tall = wide = max(tall, wide)
            views.append(View(height, width, canvas=(tall, wide), emitted=False))
            source = 0
        if max(tall, wide) > self.max_side:
            scale = self.max_side / max(tall, wide)
            tall, wide = int(tall * scale), int(wide * scale)
        if min(tall, wide) < 1:
            raise DecodeError(f"{width} x {height} pixels are too narrow: the processor makes one side 0 pixels long")
        views.append(View(tall, wide, source=source, emitted=False))
        views.append(View(self.side, self.side, source=len(views) - 1))
        window = self._window(tall, wide)
        grid = (0, 0)
        if window:
            canvas = _snapped(tall, window), _snapped(wide, window)
            views.append(View(*canvas, source=source, emitted=False))
            grid = max(1, canvas[0] // window), max(1, canvas[1] // window)
            views += self._tiles(canvas, window, len(views) - 1)
        tiles = grid[0] * grid[1]
        markers = 2 + 2 * tiles + max(0, grid[0] - 1)
        features = self._tokens(self.side) + tiles * self._tokens(self.tile_size)
        return ImageLayout(height, width, tuple(views), features + markers, grid, num_markers=markers)

    def _window(self, height: int, width: int) -> int:
        """Returns the side of the windows in pixels of the image; 0 if it is not cut."""
        short, long = min(height, width), max(height, width)
        if long <= self.side:
            return short if long / short > 1.5 else 0
        return min(short, self.tile_size) if long / short > 4 else self.tile_size

    def _tiles(self, canvas: tuple[int, int], window: int, source: int) -> list[View]:
        height, width = canvas
        boxes = [
            (left, top, min(left + window, width), min(top + window, height))
            for top in range(0, height, window)
            for left in range(0, width, window)
        ]
        return [View(self.tile_size, self.tile_size, source=source, box=box) for box in boxes]

    def _tokens(self, side: int) -> int:
        return (side // self.stride) ** 2

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        one = f"<patch_start>{self.image_token * self._tokens(self.tile_size)}<patch_end>"
        whole = f"<im_start>{self.image_token * self._tokens(self.side)}<im_end>"
        return "<patch_newline>".join([one * columns] * rows) + whole

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        batch = super().collate(samples)
        grids = [image.layout.grid for sample in samples for image in sample]
        most = max(math.prod(grid) for grid in grids)
        if most:
            newlines = [
                [column == columns - 1 and row < rows - 1 for row in range(rows) for column in range(columns)]
                for rows, columns in grids
            ]
            batch["patch_newline_masks"] = [line + [False] * (most - len(line)) for line in newlines]
        return batch


def _snapped(side: int, window: int) -> int:
    """Returns a side in whole windows, rounded up if more than a fifth of one is left."""
    return window * (side // window + (side % window > 0.2 * window)) if side >= window else side
