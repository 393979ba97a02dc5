"""Idefics3 and SmolVLM: an image is split into square tiles, with the whole image as the last tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import DecodeError

_LONGEST_EDGE = 4096
"""The longer side after the first resampling is never longer."""
_DEFAULT_TOKENS = {"Idefics3ImageProcessor": 169, "SmolVLMImageProcessor": 64}
"""Tokens per tile of the published models."""


@dataclass(frozen=True, kw_only=True)
class Idefics3(FrontEnd):
    """Resizes the longer side to a length, then both sides to whole tiles, and splits the image into tiles.

    An image of more than one tile is followed by a tile with all of it. `layout.grid` is (rows, columns) of tiles, (0,
    0) if there is one tile. Values: dtype[tiles, 3, tile_size, tile_size].
    """

    tile_size: int = 364
    """Pixels of a tile's side (max_image_size)."""
    longest_edge: int | None = 4 * 364
    """Length of the longer side after the first resampling, or None with `size` or without this resampling."""
    size: tuple[int, int] | None = None
    """(height, width) after the first resampling."""
    splits: bool = True
    """Whether images are split into tiles. If not, each is one tile."""
    image_seq_len: int = 169
    """Tokens of a tile."""
    returns_rows: bool = False
    """Whether `batch_vision` returns the tile grids as "rows" and "cols"."""
    fake_image_token: str = "<fake_token_around_image>"
    """Text before and after the tokens of a tile."""
    global_image_token: str = "<global-img>"
    """Text before the tokens of the tile that shows the whole image."""
    blank_line_tokens: int = 1
    """Tokens of an empty line in the tokenizer: 1 if it merges two line breaks."""

    family: ClassVar[str] = "idefics3"
    processors: ClassVar[tuple[str, ...]] = tuple(_DEFAULT_TOKENS)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD
    float_backends: ClassVar[frozenset[str]] = frozenset({"torch"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"longest_edge": 4 * 364})
        tile = config.take_size("max_image_size", {"longest_edge": 364})
        if "longest_edge" not in tile:
            raise config.error(f"max_image_size={tile} has no longest_edge")
        config.require("do_pad", True, "images with different numbers of tiles form no batch without padding")
        config.take("video_sampling")  # how SmolVLM chooses the frames of videos
        resizes = config.take_flag("do_resize", True)
        pair = (size["height"], size["width"]) if {"height", "width"} <= size.keys() else None
        if resizes and "longest_edge" not in size and pair is None:
            raise config.error(f"size={size} is neither a longest_edge nor a height and a width")
        longest = size.get("longest_edge")
        return cls(
            **config.take_conversion(HALF, HALF, "lanczos"),
            tile_size=tile["longest_edge"],
            longest_edge=longest if resizes else None,
            size=pair if resizes and longest is None else None,
            splits=config.take_flag("do_image_splitting", True),
            image_seq_len=config.outer_integer("image_seq_len", _DEFAULT_TOKENS[config.type_name], least=1),
            returns_rows=config.take_flag("return_row_col_info", False),
            **config.take_texts(cls, "image_token", "fake_image_token"),
            global_image_token=config.outer_text(
                "global_image_token", config.outer_text("global_image_tag", cls.global_image_token)
            ),
            blank_line_tokens=config.blank_line_tokens(),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views: list[View] = []
        source, tile = (height, width), self.tile_size
        if self.size is not None or self.longest_edge is not None:
            source = self.size or longest_edge_size(height, width, self.longest_edge or 0)
            views.append(View(*source, emitted=False))
        rows = columns = 0
        before = len(views) - 1
        if self.splits:
            whole = _whole_tiles(*source, tile)
            if 0 in whole:
                raise DecodeError(
                    f"{width} x {height} pixels are too narrow: the processor makes one side 0 pixels long"
                )
            rows, columns = whole[0] // tile, whole[1] // tile
            if rows * columns == 1:
                rows = columns = 0
                views.append(View(*whole, source=before))
            else:
                views.append(View(*whole, source=before, tile=(tile, tile)))
                views.append(View(tile, tile, source=before + 1))
        else:
            views.append(View(tile, tile, source=before))
        features = (rows * columns + 1) * self.image_seq_len
        markers = 3 + rows * (2 * columns + 1) + (self.blank_line_tokens - 1 if rows else 0)
        return ImageLayout(height, width, tuple(views), features + markers, (rows, columns), num_markers=markers)

    def patches_of(self, height: int, width: int) -> int:
        """Returns the patches of a tile: of 16 pixels where it is made of them and not of 14, as in SmolVLM."""
        side = 16 if height % 14 and not height % 16 else self.encoder_patch
        return (height // side) * (width // side)

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        tokens = self.image_token * self.image_seq_len
        pieces = []
        for row in range(1, rows + 1):
            pieces += [f"{self.fake_image_token}<row_{row}_col_{column + 1}>{tokens}" for column in range(columns)]
            pieces.append("\n")
        if rows:
            pieces.append("\n")
        pieces.append(f"{self.fake_image_token}{self.global_image_token}{tokens}{self.fake_image_token}")
        return "".join(pieces)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        counts = [sum(image.rows for image in sample) for sample in samples]
        device = next(image.pixels.device for sample in samples for image in sample)
        shape = (len(samples), max(counts), 3, self.tile_size, self.tile_size)
        values = zero_values(shape, self.torch_dtype, device)
        mask = torch.zeros((*shape[:2], *shape[3:]), dtype=torch.int64, device=device)
        for number, sample in enumerate(samples):
            start = 0
            for image in sample:
                self.finish(image.pixels, image.layout, values[number, start : start + image.rows])
                start += image.rows
            mask[number, : counts[number]] = 1
        batch: dict[str, Any] = {"pixel_values": values, "pixel_attention_mask": mask}
        if self.returns_rows:
            batch["rows"] = [[image.layout.grid[0] for image in sample] for sample in samples]
            batch["cols"] = [[image.layout.grid[1] for image in sample] for sample in samples]
        return batch


def longest_edge_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Returns (height, width) with the longer side as wanted; the shorter one is even, or 1."""
    aspect = width / height
    if width >= height:
        out_height, out_width = int(longest / aspect), longest
        out_height = max(1, out_height + out_height % 2)
    else:
        out_height, out_width = longest, int(longest * aspect)
        out_width = max(1, out_width + out_width % 2)
    if max(out_height, out_width) <= _LONGEST_EDGE:
        return out_height, out_width
    aspect = out_width / out_height
    if out_width >= out_height:
        return max(1, int(_LONGEST_EDGE / aspect)), _LONGEST_EDGE
    return _LONGEST_EDGE, max(1, int(_LONGEST_EDGE * aspect))


def _whole_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    """Returns (height, width) in whole tiles: the longer side rounded up, the other one after it."""
    aspect = width / height
    if width >= height:
        out_width = math.ceil(width / tile) * tile
        return math.ceil(int(out_width / aspect) / tile) * tile, out_width
    out_height = math.ceil(height / tile) * tile
    return out_height, math.ceil(int(out_height * aspect) / tile) * tile
