"""Phi-4 multimodal: tiles of a canvas with white around the image, and a thumbnail that is made of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES, closest_of, grids_of_a_set
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

_THUMBNAIL_TOKENS = 256 + 16
"""Features of the thumbnail, and one at the end of each of its rows."""
_SHORTEST_SIDE = 10
"""Pixels of an image on its canvas; the processor refuses less."""


@dataclass(frozen=True, kw_only=True)
class Phi4Multimodal(FrontEnd):
    """Fits an image into a canvas of tiles, with white at the right and at the bottom.

    `layout.grid` is (rows, columns) of tiles. Values: dtype[1 + tiles, 3, tile_size, tile_size]: the thumbnail, which
    is interpolated from the values of the tiles, then these row by row. `batch_vision` pads them with zeros.
    """

    tile_size: int = 448
    """Pixels of a tile's side."""
    patch_size: int = 14
    """Pixels of a patch's side in the vision encoder."""
    max_tiles: int = 36
    """Most tiles of a canvas ("dynamic_hd")."""
    image_token: str = "<|endoftext10|>"

    family: ClassVar[str] = "phi4_multimodal"
    processors: ClassVar[tuple[str, ...]] = ("Phi4MultimodalImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    model_keys: ClassVar[tuple[str, ...]] = ("image_pixel_values", "image_sizes", "image_attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize"}
    fill: ClassVar[tuple[int, int, int] | None] = (255, 255, 255)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype == "uint8":
            raise ConfigError(
                'Phi4Multimodal(dtype="uint8") is invalid: the thumbnail is interpolated from normalised values, so '
                'there are no bytes of it. Give dtype="float32", "bfloat16" or "float16".'
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        side = config.take_square("size", 448)
        conversion = config.take_conversion(HALF, HALF, "bicubic")
        if conversion["values"].rescale is None and conversion["values"].mean is None:
            raise config.error("do_rescale and do_normalize are off: the thumbnail would be made of rounded bytes")
        if conversion["filter"] not in ("bilinear", "bicubic"):
            raise config.error(f"resample={conversion['filter']} is not a filter that torch has for the thumbnail")
        return cls(
            **conversion,
            tile_size=side,
            patch_size=config.take_integer("patch_size", 14, most=LARGEST_PATCH),
            max_tiles=config.take_integer("dynamic_hd", 36, most=MOST_TILES),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        side = self.tile_size
        columns, rows = math.ceil(width / side), math.ceil(height / side)
        if columns * rows > self.max_tiles:
            columns, rows = closest_of(grids_of_a_set(1, self.max_tiles), width, height, side * side)
        wide, tall = columns * side, rows * side
        if wide / width < tall / height:
            inner = (int(height * (wide / width)), wide)
        else:
            inner = (tall, int(width * (tall / height)))
        if min(inner) < _SHORTEST_SIDE:
            raise DecodeError(f"{width} x {height} pixels are too narrow: less than {_SHORTEST_SIDE} pixels are left")
        view = View(*inner, canvas=(tall, wide), tile=(side, side), filter="bilinear")
        valid_rows, valid_columns = (
            self._sampled(*pair) for pair in zip((rows, columns), self._valid(view), strict=True)
        )
        tokens = _THUMBNAIL_TOKENS + 1 + valid_rows * valid_columns + (valid_rows if valid_columns else 0)
        return ImageLayout(height, width, (view,), tokens, (rows, columns))

    @property
    def _mask_side(self) -> int:
        """Patches of a tile's side."""
        return self.tile_size // self.patch_size

    def _valid(self, view: View) -> tuple[int, int]:
        """Returns (rows, columns) of the patches of a canvas that are not padding alone."""
        rows, columns = (
            side // self.tile_size * self._mask_side - (side - inner) // self.patch_size
            for side, inner in zip(view.canvas_size, (view.height, view.width), strict=True)
        )
        return max(0, rows), max(0, columns)

    def _sampled(self, tiles: int, valid: int) -> int:
        """Returns how many of the first `valid` patches in a direction are every second of their tile."""
        side = self._mask_side
        return sum(1 for patch in range(min(valid, tiles * side)) if patch % side % 2 == 0)

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return 1 + len(pixels), 3, self.tile_size, self.tile_size

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        import torch
        from torch.nn.functional import interpolate

        side = (self.tile_size, self.tile_size)
        rows, columns = layout.grid
        values = self.values.convert(pixels, torch.float32, channel_axis=1).view(rows, columns, 3, *side)
        canvas = values.permute(2, 0, 3, 1, 4).reshape(1, 3, rows * side[0], columns * side[1])
        if rows * columns > 1:
            canvas = interpolate(canvas, size=side, mode=self.filter, align_corners=False)
        out[:1].copy_(canvas)
        out[1:].copy_(values.flatten(0, 1))

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        most, side = 1 + max(image.rows for image in images), self._mask_side
        shape = (len(images), most, 3, self.tile_size, self.tile_size)
        values = zero_values(shape, self.torch_dtype, images[0].pixels.device)
        mask = torch.ones((len(images), most, side, side), device=values.device)
        for image, tiles, masks in zip(images, values, mask, strict=True):
            self.finish(image.pixels, image.layout, tiles[: 1 + image.rows])
            rows, columns = image.layout.grid
            valid = torch.zeros((rows * side, columns * side), device=values.device)
            valid_rows, valid_columns = self._valid(image.layout.views[0])
            valid[:valid_rows, :valid_columns] = 1
            cut = valid.view(rows, side, columns, side).transpose(1, 2)
            masks[1 : 1 + image.rows] = cut.reshape(-1, side, side)
        sizes = [image.layout.views[0].canvas_size for image in images]
        return {
            "image_pixel_values": values,
            "image_sizes": torch.tensor(sizes, dtype=torch.int64),
            "image_attention_mask": mask,
            "num_img_tokens": torch.tensor([image.num_tokens for image in images], dtype=torch.int64),
        }
