"""Ovis 2: a thumbnail, and tiles of the smallest grid that covers an image well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import require_one_size
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.internvl import TileGrid, grids, take_tile_fields
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

_WELL_COVERED = 0.9
"""Share of an image that the tiles of a grid must cover without enlarging it."""


@dataclass(frozen=True, kw_only=True)
class Ovis2(TileGrid):
    """A thumbnail, and the tiles of a grid if it has several, with markers between the columns and rows."""

    covers: bool = True
    """Whether the grid is the smallest that covers an image well ("use_covering_area_grid"); if not, it is InternVL's.
    """
    tile_tokens: int = 256
    """Tokens of a tile ("image_seq_length")."""
    image_token: str = "<image>"
    """Placeholder of an image in the text."""
    feature_token: str = "<IMG_ATOM>"
    """Placeholder of a feature in the expanded text."""

    family: ClassVar[str] = "ovis2"
    processors: ClassVar[tuple[str, ...]] = ("Ovis2ImageProcessor",)
    thumbnail_first: ClassVar[bool] = True
    separate_placeholder: ClassVar[bool] = True
    unused_keys: ClassVar[frozenset[str]] = frozenset({"crop_size", "do_pad", "pad_size"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_center_crop", False, "it would cut tiles")
        return cls(
            **take_tile_fields(config, 384),
            covers=config.take_flag("use_covering_area_grid", True),
            tile_tokens=config.outer_integer("image_seq_length", 256, least=1),
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        if self.covers:
            return _covering_grid(height, width, self.tile_size[0], self.max_tiles)
        return super().grid(height, width)

    def layout(self, width: int, height: int) -> ImageLayout:
        views, (rows, columns) = self.tiled(height, width)
        tiles = sum(view.num_tiles for view in views)
        markers = 3 + (rows * columns - 1)  # every tile but the last is followed by one, after the thumbnail's
        return ImageLayout(
            height, width, views, tiles * self.tile_tokens + markers, (rows, columns), num_markers=markers
        )

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        tile = self.feature_token * self.tile_tokens
        tiles = "<IMG_ROW>".join(["<IMG_COL>".join([tile] * columns)] * rows) if rows * columns > 1 else ""
        return f"<IMG_START>{tile}<IMG_GRID>{tiles}<IMG_END>"

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {"grids": [image.layout.grid for image in images]}


@lru_cache(maxsize=4096)
def _covering_grid(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid with the fewest tiles that covers an image well, else of the one that does
    best.
    """
    # The processor's grids are (columns, rows), and it splits an image by them as (rows, columns).
    candidates = sorted(
        ((columns, rows) for rows, columns in grids(1, most)), key=lambda grid: (grid[0] * grid[1], grid)
    )
    covered = [(grid, _covered(height, width, grid, tile)) for grid in candidates]
    good = [entry for entry in covered if entry[1] > _WELL_COVERED]
    if good:
        chosen = min(good, key=lambda entry: (entry[0][0] * entry[0][1], -entry[1]))[0]
    else:
        chosen = min(covered, key=lambda entry: (-entry[1], entry[0][0] * entry[0][1]))[0]
    columns, rows = chosen
    return rows, columns


def _covered(height: int, width: int, split: tuple[int, int], tile: int) -> float:
    """Returns the share of an image's area that remains where each part is shrunk into a tile."""
    rows, columns = split
    row_edges = [row * (height // rows) for row in range(rows)] + [height]
    column_edges = [column * (width // columns) for column in range(columns)] + [width]
    area: float = 0
    for row in range(rows):
        for column in range(columns):
            sides = (column_edges[column + 1] - column_edges[column], row_edges[row + 1] - row_edges[row])
            longer: float = max(sides)
            shorter: float = min(sides)
            if longer > tile:
                shorter, longer = shorter / longer * tile, tile
            area += longer * shorter
    return area / (width * height)
