"""Granite Docling: tiles of a page as InternVL's, numbered by row and column in the text as Idefics3's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES, TileGrid, closest_of, grids
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_FACTOR, ProcessorConfig

_LONGEST = 16
"""Most tiles in a direction: the tokenizer has markers for as many."""


@dataclass(frozen=True, kw_only=True)
class GraniteDocling(TileGrid):
    """Cuts pages into tiles; `batch_vision` keeps samples apart and pads them to the most tiles of one."""

    dense_max_tiles: int = 0
    """Most tiles of a page that would shrink too much with `max_tiles` ("dense_max_patches"); 0: those of all."""
    dense_max_scale: float = 0.0
    """Width of the canvas, as a part of the page's, below which a page shrinks too much; 0 does not ask."""
    dense_min_aspect: float = 0.0
    """Width through height that such a page must exceed."""
    dense_max_aspect: float = 0.0
    """Most of it; 0 for no limit."""
    image_seq_len: int = 64
    """Tokens of a tile."""
    fine: bool = False
    """Whether tiles have four times as many ("fine_route")."""
    blank_line_tokens: int = 1
    """Tokens of an empty line in the tokenizer: 1 if it merges two line breaks."""
    image_token: str = "<image>"

    family: ClassVar[str] = "granite_docling"
    processors: ClassVar[tuple[str, ...]] = ("GraniteDoclingImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask", "tile_fine_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize"}
    float_backends: ClassVar[frozenset[str]] = frozenset({"pil"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"height": 512, "width": 512}, square=True)
        numbers: dict[str, Any] = {
            name: config.take_number(name, 0.0, least=0.0, most=LARGEST_FACTOR)
            for name in ("dense_max_scale", "dense_min_aspect", "dense_max_aspect")
        }
        fewest = config.take_integer("min_patches", 1, most=MOST_TILES)
        most = config.take_integer("max_patches", 32, most=MOST_TILES)
        dense = config.take_integer("dense_max_patches", 0, least=0, most=MOST_TILES)
        if fewest > min(most, dense or most):
            raise config.error(f"min_patches={fewest} is more than max_patches={most} or dense_max_patches={dense}")
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
            tile_size=config.height_and_width("size", size),
            tiles=config.take_flag("crop_to_patches", True),
            min_tiles=fewest,
            max_tiles=most,
            dense_max_tiles=dense,
            **numbers,
            fine=config.take_flag("fine_route", False),
            image_seq_len=config.outer_integer("image_seq_len", 64, least=1),
            image_token=config.outer_text("image_token", cls.image_token),
            blank_line_tokens=config.blank_line_tokens(),
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return _closest_grid(height, width, self.tile_size, self.min_tiles, self._most(height, width))

    def _most(self, height: int, width: int) -> int:
        """Returns the most tiles of a page."""
        if not self.dense_max_tiles or (self.dense_max_scale <= 0 and self.dense_min_aspect <= 0):
            return self.max_tiles
        aspect = width / height
        if self.dense_min_aspect > 0 and not aspect > self.dense_min_aspect:
            return self.max_tiles
        if 0 < self.dense_max_aspect < aspect:
            return self.max_tiles
        if self.dense_max_scale > 0:
            columns = _closest_grid(height, width, self.tile_size, self.min_tiles, self.max_tiles)[1]
            if not columns * self.tile_size[1] / width < self.dense_max_scale:
                return self.max_tiles
        return self.dense_max_tiles

    def layout(self, width: int, height: int) -> ImageLayout:
        views, (rows, columns) = self.tiled(height, width)
        tiles = sum(view.num_tiles for view in views)
        markers = 2 * rows * columns + rows + (2 + self.blank_line_tokens if tiles > 1 else 0)
        features = tiles * self._tile_tokens
        return ImageLayout(height, width, views, features + markers, (rows, columns), num_markers=markers)

    @property
    def _tile_tokens(self) -> int:
        return self.image_seq_len * (4 if self.fine else 1)

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        fake, tokens = "<fake_token_around_image>", self.image_token * self._tile_tokens
        lines = [
            "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{tokens}" for column in range(columns)) + "\n"
            for row in range(rows)
        ]
        whole = f"\n{fake}<global-img>{tokens}{fake}" if rows * columns > 1 else ""
        return "".join(lines) + whole

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        counts = [sum(image.rows for image in sample) for sample in samples]
        device = next(image.pixels.device for sample in samples for image in sample)
        shape = (len(samples), max(counts), 3, *self.tile_size)
        values = torch.zeros(shape, dtype=self.torch_dtype, device=device)
        mask = torch.zeros(shape[:2], dtype=torch.bool, device=device)
        for number, sample in enumerate(samples):
            start = 0
            for image in sample:
                self.finish(image.pixels, image.layout, values[number, start : start + image.rows])
                start += image.rows
            mask[number, : counts[number]] = True
        batch: dict[str, Any] = {"pixel_values": values, "pixel_attention_mask": mask}
        if self.fine:
            batch["tile_fine_mask"] = torch.ones(len(samples), dtype=torch.bool, device=device)
        grids = [[image.layout.grid for image in sample] for sample in samples]
        batch["rows"] = [[grid[0] for grid in sample] for sample in grids]
        batch["cols"] = [[grid[1] for grid in sample] for sample in grids]
        return batch


@lru_cache(maxsize=4096)
def _closest_grid(height: int, width: int, tile: tuple[int, int], fewest: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid whose aspect ratio is closest to an image's, with at most 16 per side."""
    by_columns = [(columns, rows) for rows, columns in grids(fewest, most) if max(rows, columns) <= _LONGEST]
    columns, rows = closest_of(by_columns, width, height, tile[0] * tile[1])
    return rows, columns
