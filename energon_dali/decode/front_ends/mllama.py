"""Mllama (Llama 3.2 Vision): tiles of the canvas that an image fits best, and masks for cross attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch


_MOST_TILES = 64
"""Largest max_image_tiles; a batch has room for as many tiles per image."""


@dataclass(frozen=True, kw_only=True)
class Mllama(FrontEnd):
    """Fits an image into a canvas of tiles, with black at the right and at the bottom.

    `layout.grid` is (rows, columns) of tiles. Values: dtype[tiles, 3, tile_size, tile_size], row by row. The model sees
    images by cross attention: one token stands for an image in the text, however many tiles it has.
    """

    tile_size: int
    """Pixels of a tile's side."""
    max_tiles: int = 4
    """Most tiles of an image."""
    image_token: str = "<|image|>"

    family: ClassVar[str] = "mllama"
    processors: ClassVar[tuple[str, ...]] = ("MllamaImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD
    float_backends: ClassVar[frozenset[str]] = frozenset({"pil", "torch"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        side = config.take_square("size", 224)
        config.require("do_resize", True, "Mllama's processor always resizes")
        config.require("do_pad", True, "Mllama's processor always pads")
        max_tiles = config.take_integer("max_image_tiles", 4, most=_MOST_TILES)
        config.take_around("MllamaProcessor")
        return cls(
            **config.take_conversion(HALF, HALF, "bilinear"),
            tile_size=side,
            max_tiles=max_tiles,
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = _choose_canvas(height, width, self.tile_size, self.max_tiles)
        canvas = (rows * self.tile_size, columns * self.tile_size)
        view = View(
            *fit_tiles(height, width, canvas, self.tile_size), canvas=canvas, tile=(self.tile_size, self.tile_size)
        )
        return ImageLayout(height, width, (view,), 1, (rows, columns))

    def attention_groups(self, layout: ImageLayout) -> list[tuple[int, int]]:
        """Returns one group: the tiles of an image attend to each other."""
        return [(1, sum(count * patches for count, patches in super().attention_groups(layout)))]

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        device = next(image.pixels.device for sample in samples for image in sample)
        shape = (len(samples), max(map(len, samples)))
        tiles_shape = (*shape, self.max_tiles, 3, self.tile_size, self.tile_size)
        values = zero_values(tiles_shape, self.torch_dtype, device)
        ids = torch.zeros(shape, dtype=torch.int64)
        mask = torch.zeros((*shape, self.max_tiles), dtype=torch.int64)
        mask[:, :, 0] = 1  # also of images that are missing, as in the processor
        known = _canvases(self.max_tiles)
        for row, sample in enumerate(samples):
            for column, image in enumerate(sample):
                tiles = image.rows
                self.finish(image.pixels, image.layout, values[row, column, :tiles])
                mask[row, column, :tiles] = 1
                rows, columns = image.layout.grid
                ids[row, column] = known.index((rows, columns)) + 1
        return {
            "pixel_values": values,
            "aspect_ratio_ids": ids,
            "aspect_ratio_mask": mask,
            "num_tiles": [[image.rows for image in sample] for sample in samples],
        }

    def cross_attention_mask(
        self, input_ids: Sequence[Sequence[int]], num_tiles: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Returns which tiles each token attends to: those of the image before it, as the processor computes it.

        Images that follow each other directly share the text after the last of them.

        Args:
            input_ids: Token ids of each sample, padded or not.
            num_tiles: Tiles of each image of each sample: "num_tiles" of `batch_vision`.

        Returns:
            int64[samples, longest input_ids, most images of a sample, max_tiles], 1 where a token attends.

        Raises:
            ConfigError: The front end has no `image_token_id`.
        """
        import torch

        if self.image_token_id is None:
            raise ConfigError(
                "This front end has no id of its image token, by which images are found in input_ids. Give "
                "it: front_end.with_fields(image_token_id=tokenizer.convert_tokens_to_ids(front_end.image_token))."
            )

        length = max(map(len, input_ids))
        places = [[at for at, token in enumerate(row) if token == self.image_token_id] for row in input_ids]
        mask = torch.zeros((len(places), length, max(map(len, places)), self.max_tiles), dtype=torch.int64)
        for row, starts in enumerate(places):
            # A single image is attended to by padding too; that is the processor's rule.
            last = length if len(starts) == 1 else len(input_ids[row])
            ends = [*starts[1:], last]
            for number in reversed(range(len(starts) - 1)):
                if ends[number] == starts[number] + 1:
                    ends[number] = ends[number + 1]
            for number, (start, end, tiles) in enumerate(zip(starts, ends, num_tiles[row], strict=False)):
                mask[row, start:end, number, :tiles] = 1
        return mask


@lru_cache(maxsize=64)
def _canvases(most: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) of all canvases, in the order of their ids."""
    sides = range(1, most + 1)
    return tuple((rows, columns) for rows in sides for columns in sides if rows * columns <= most)


@lru_cache(maxsize=64)
def by_shape(most: int) -> dict[float, tuple[tuple[int, int], ...]]:
    """Returns all grids with at most that many tiles, by the ratio of their first side to the second.

    The order is that of Llama 4's and Perception LM's processors: by tiles, most first, then by the first side.
    """
    shapes: dict[float, tuple[tuple[int, int], ...]] = {}
    for tiles in range(most, 0, -1):
        for first in (side for side in range(1, tiles + 1) if tiles % side == 0):
            grid = (first, tiles // first)
            shapes[grid[0] / grid[1]] = (*shapes.get(grid[0] / grid[1], ()), grid)
    return shapes


@lru_cache(maxsize=4096)
def _choose_canvas(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the canvas in which an image is least enlarged, else least reduced.

    Of canvases that are equal in this the smallest wins.
    """
    fits = [
        (min(rows * tile / height, columns * tile / width), rows * columns, (rows, columns))
        for rows, columns in _canvases(most)
    ]
    enlarging = [scale for scale, *_ in fits if scale >= 1]
    wanted = min(enlarging) if enlarging else max(scale for scale, *_ in fits)
    # The first of those with the fewest tiles.
    return min((fit for fit in fits if fit[0] == wanted), key=lambda fit: fit[1])[2]


def fit_tiles(height: int, width: int, canvas: tuple[int, int], tile: int) -> tuple[int, int]:
    """Returns (height, width) of an image on a canvas: at most the canvas, and enlarged at most to a tile."""
    tall, wide = min(max(height, tile), canvas[0]), min(max(width, tile), canvas[1])
    scale_y, scale_x = tall / height, wide / width
    if scale_x < scale_y:
        return min(math.floor(height * scale_x) or 1, tall), wide
    return tall, min(math.floor(width * scale_y) or 1, wide)
