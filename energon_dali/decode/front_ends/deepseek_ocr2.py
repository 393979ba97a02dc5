"""DeepSeek-OCR 2: a square with the whole image, and for large ones the tiles of a grid, which are smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_tiles
from energon_dali.decode.front_ends.fixed_size import HALF, square_view
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES, closest_grid
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig, is_integer
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

_GRAY = (127, 127, 127)


@dataclass(frozen=True, kw_only=True)
class SquareAndTiles(FrontEnd):
    """A square with the whole image, and tiles of another size. `layout.grid` is (rows, columns) of tiles.

    Values: dtype[1, 3, pixels]: those of the square, then those of the tiles row by row; `batch_vision` separates them.
    """

    tile_size: int
    """Pixels of a tile's side."""

    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_values_local", "num_local_patches")

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        import torch

        parts = [self._flat(cut_tiles(canvas, *view.tile_size)) for view, canvas in self.canvases(pixels, layout)]
        return torch.cat(parts, -1)[None]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        made = self.canvases(Pixels(tensor=pixels), layout)
        parts = [self._flat(cut_tiles(canvas, *view.tile_size)) for view, canvas in made]
        return torch.cat(parts, -1)[:, None]

    @staticmethod
    def _flat(tiles: torch.Tensor) -> torch.Tensor:
        """Returns uint8[..., 3, tiles * pixels] of uint8[..., tiles, 3, pixels]."""
        return tiles.transpose(-3, -2).flatten(-2)

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return tuple(pixels.shape)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        squares, tiles = [], []
        for image in images:
            values: Any = image.values[0]
            side = next(view.canvas_size for view in image.layout.views if view.emitted)
            squares.append(values[:, : side[0] * side[1]].unflatten(-1, side))
            rest = values[:, side[0] * side[1] :]
            tiles.append(rest.unflatten(-1, (-1, self.tile_size, self.tile_size)).transpose(0, 1))
        counts = [math.prod(image.layout.grid) for image in images]
        batch = {"pixel_values": torch.stack(squares), "num_local_patches": torch.tensor(counts, dtype=torch.int64)}
        return {**batch, "pixel_values_local": torch.cat(tiles)} if any(counts) else batch


@dataclass(frozen=True, kw_only=True)
class DeepseekOcr2(SquareAndTiles):
    """Fits an image into a square with gray around it, and resizes a large one to a grid of tiles too.

    `layout.grid` is (0, 0) for an image that is not larger than a tile.
    """

    side: int = 1024
    """Pixels of the square's side, where images may be cut into tiles."""
    tile_size: int = 768
    """Pixels of a tile's side, and of the square's where they may not."""
    tiles: bool = True
    """Whether large images are cut into tiles ("crop_to_patches")."""
    min_tiles: int = 2
    """Fewest tiles of a grid."""
    max_tiles: int = 6
    """Most tiles of a grid."""
    background: tuple[int, int, int] = _GRAY
    """Bytes around an image in its square."""
    patch_size: int = 16
    """Pixels of a patch's side in the vision encoder."""
    downsample_ratio: int = 4
    """Patches per side of a token."""
    image_token: str = "<image>"

    family: ClassVar[str] = "deepseek_ocr2"
    processors: ClassVar[tuple[str, ...]] = ("DeepseekOcr2ImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        around = config.take_around("DeepseekOcr2Processor")
        given = config.take("background_color", list(_GRAY))
        if (
            not isinstance(given, (list, tuple))
            or len(given) != 3
            or not all(is_integer(byte) and 0 <= byte <= 255 for byte in given)
        ):
            raise config.invalid("background_color", given, "three whole numbers between 0 and 255")
        fields: dict[str, Any] = {
            "tiles": config.take_flag("crop_to_patches", True),
            "min_tiles": config.take_integer("min_patches", 2, most=MOST_TILES),
            "max_tiles": config.take_integer("max_patches", 6, most=MOST_TILES),
        }
        if around is not None:  # the processor passes these, whatever its image processor says
            fields = {"tiles": True, "min_tiles": 2, "max_tiles": 6}
        return cls(
            **config.take_conversion(HALF, HALF, "bicubic"),
            **fields,
            side=config.take_square("size", 1024),
            tile_size=config.take_integer("tile_size", 768, most=LARGEST_SIDE),
            background=(int(given[0]), int(given[1]), int(given[2])),
            patch_size=config.outer_integer("patch_size", 16, least=1, most=LARGEST_PATCH),
            downsample_ratio=config.outer_integer("downsample_ratio", 4, least=1, most=MOST_MERGED),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        side, tile = self.side if self.tiles else self.tile_size, self.tile_size
        scale = side / max(width, height)
        inner = round(height * scale), round(width * scale)
        if not all(inner):
            raise DecodeError(f"{width} x {height} pixels are too narrow: the processor makes one side 0 pixels long")
        square = View(*inner)
        if inner[0] != inner[1]:
            square = replace(square_view(*inner, self.background), emitted=True)
        views: tuple[View, ...] = (square,)
        grid = (0, 0)
        if self.tiles and max(width, height) > tile:
            grid = closest_grid(height, width, tile * tile, self.min_tiles, self.max_tiles)
            views = (square, View(grid[0] * tile, grid[1] * tile, tile=(tile, tile)))
        tokens = self._tokens(self.side) + self._tokens(tile) * grid[0] * grid[1] + 1
        return ImageLayout(height, width, views, tokens, grid)

    def _tokens(self, side: int) -> int:
        return math.ceil(side / self.patch_size / self.downsample_ratio) ** 2
