"""Gemma 4: images of whole blocks of patches with a limit of tokens, as patches with their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.siglip2 import PixelPatches
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

_SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Values of max_soft_tokens that the processor allows."""


@dataclass(frozen=True, kw_only=True)
class Gemma4(PixelPatches):
    """Resizes an image to as many whole blocks of patches as fit a number of tokens; the model pools a block to one.

    `layout.grid` is (rows, columns) of patches. `batch_vision` pads the patches to the most of an image, with the
    position (-1, -1).
    """

    pooling_kernel_size: int = 3
    """Patches of a block's side."""
    max_soft_tokens: int = 280
    """Most blocks of an image."""
    image_token: str = "<|image|>"
    """Placeholder of an image in the text, and of each of its features."""
    start_token: str = "<|image>"
    """Text before the features. The processor does not count it, nor the one after them."""
    end_token: str = "<image|>"
    """Text after them."""

    family: ClassVar[str] = "gemma4"
    processors: ClassVar[tuple[str, ...]] = ("Gemma4ImageProcessor", "Gemma4UnifiedImageProcessor")
    torchvision_only: ClassVar[frozenset[str]] = frozenset({"Gemma4UnifiedImageProcessor"})
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_position_ids")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        fields = take_soft_tokens(config, 280)
        if config.type_name == "Gemma4UnifiedImageProcessor":  # its patches are whole blocks
            fields["patch_size"], fields["pooling_kernel_size"] = (
                fields["patch_size"] * fields["pooling_kernel_size"],
                1,
            )
        return cls(
            **config.take_conversion((0.0,) * 3, (1.0,) * 3, "bicubic", normalize=False),
            **fields,
            image_token=config.outer_text("image_token", cls.image_token),
            start_token=config.outer_text("boi_token", cls.start_token),
            end_token=config.outer_text("eoi_token", cls.end_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = self._blocks(height, width)
        block = self.pooling_kernel_size
        view = View(rows * block * self.patch_size, columns * block * self.patch_size)
        return ImageLayout(height, width, (view,), rows * columns, (rows * block, columns * block))

    def _blocks(self, height: int, width: int) -> tuple[int, int]:
        """Returns (rows, columns) of blocks.

        Raises:
            DecodeError: The processor refuses images of this size.
        """
        side = self.pooling_kernel_size * self.patch_size
        scale = math.sqrt(self.max_soft_tokens * side**2 / (height * width))
        rows, columns = math.floor(scale * height / side), math.floor(scale * width / side)
        if not rows and not columns:
            raise DecodeError(f"{width} x {height} pixels become less than a block of {side} pixels in both directions")
        if not rows:
            rows, columns = 1, min(math.floor(width / height), self.max_soft_tokens)
        elif not columns:
            rows, columns = min(math.floor(height / width), self.max_soft_tokens), 1
        if rows * columns > self.max_soft_tokens:
            raise DecodeError(f"{width} x {height} pixels become {rows} x {columns} blocks, too many for the processor")
        return rows, columns

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.start_token}{self.image_token * layout.num_features}{self.end_token}"

    def text_tokens(self, layout: ImageLayout) -> int:
        return layout.num_tokens + 2

    @property
    def max_patches(self) -> int:
        """Most patches of an image, to which those of a batch are padded."""
        return self.max_soft_tokens * self.pooling_kernel_size**2

    def positions(self, rows: int, columns: int) -> torch.Tensor:
        """Returns (column, row) of each patch of a grid, and (-1, -1) for padding: int64[1, max_patches, 2].

        Args:
            rows: Of patches.
            columns: Likewise.
        """
        import torch

        found = torch.full((1, self.max_patches, 2), -1, dtype=torch.int64)
        found[0, : rows * columns, 0] = torch.arange(columns).repeat(rows)
        found[0, : rows * columns, 1] = torch.arange(rows).repeat_interleave(columns)
        return found

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        positions = torch.cat([self.positions(*image.layout.grid) for image in images])
        tokens = torch.tensor([image.num_tokens for image in images], dtype=torch.int64)
        return {
            "pixel_values": self.padded(images, self.max_patches),
            "image_position_ids": positions,
            "num_soft_tokens_per_image": tokens,
        }


def take_soft_tokens(config: ProcessorConfig, most: int) -> dict[str, Any]:
    """Returns the fields patch_size, pooling_kernel_size and max_soft_tokens.

    Args:
        config: Of the processor.
        most: Default of max_soft_tokens.

    Raises:
        ConfigError: A value is out of range.
    """
    config.require("do_resize", True, "images that are not resized are not whole blocks of patches")
    most = config.take_integer("max_soft_tokens", most)
    if most not in _SOFT_TOKENS:
        raise config.invalid("max_soft_tokens", most, f"one of {', '.join(map(str, _SOFT_TOKENS))}")
    return {
        "patch_size": config.take_integer("patch_size", 16, most=LARGEST_PATCH),
        "pooling_kernel_size": config.take_integer("pooling_kernel_size", 3, most=MOST_MERGED),
        "max_soft_tokens": most,
    }
