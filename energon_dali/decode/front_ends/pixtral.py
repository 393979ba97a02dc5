"""Pixtral and Mistral 3: images of whole patches, at most as large as a square, padded to the largest of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_MERGED
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import DecodeError


@dataclass(frozen=True, kw_only=True)
class Pixtral(FrontEnd):
    """Shrinks an image into a rectangle where needed, and rounds both sides up to whole patches.

    `layout.grid` is (rows, columns) of patches, and of tokens. Values: dtype[1, 3, height, width]; `batch_vision` pads
    them with zeros at the bottom and on the right.
    """

    size: tuple[int, int] = (1024, 1024)
    """Most (height, width) before rounding to patches."""
    patch_size: tuple[int, int] = (16, 16)
    """(height, width) of what becomes one token: a patch, or the patches that the model merges."""
    image_token: str = "[IMG]"
    break_token: str = "[IMG_BREAK]"
    """Text after each row of tokens but the last."""
    end_token: str = "[IMG_END]"
    """Text after the last row."""

    family: ClassVar[str] = "pixtral"
    processors: ClassVar[tuple[str, ...]] = ("PixtralImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"crop_size", "pad_size"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "images that are not resized are not whole patches")
        config.require("do_center_crop", False, "it would cut patches")
        config.require("do_pad", True, "images of different sizes form no batch without padding")
        size = config.take_size("size", {"longest_edge": 1024})
        longest = size.get("longest_edge")
        if longest is None and not {"height", "width"} <= size.keys():
            raise config.error(f"size={size} is neither a longest_edge nor a height and a width")
        patch = config.take_size("patch_size", {"height": 16, "width": 16}, square=True, most=LARGEST_PATCH)
        if not {"height", "width"} <= patch.keys():
            raise config.error(f"patch_size={patch} is not a height and a width")
        outer = config.outer
        if "patch_size" in outer:  # the processor around it passes its own
            side = config.outer_integer("patch_size", 16, least=1, most=LARGEST_PATCH)
            side *= config.outer_integer("spatial_merge_size", 1, least=1, most=MOST_MERGED)
            patch = {"height": side, "width": side}
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
            size=(longest, longest) if longest is not None else (size["height"], size["width"]),
            patch_size=(patch["height"], patch["width"]),
            image_token=config.outer_text("image_token", cls.image_token),
            break_token=config.outer_text("image_break_token", cls.break_token),
            end_token=config.outer_text("image_end_token", cls.end_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        shrink = max(height / self.size[0], width / self.size[1])
        inner_height, inner_width = height, width
        if shrink > 1:
            inner_height, inner_width = math.floor(height / shrink), math.floor(width / shrink)
        rows = (inner_height - 1) // self.patch_size[0] + 1
        columns = (inner_width - 1) // self.patch_size[1] + 1
        if not rows or not columns:
            raise DecodeError(f"{width} x {height} pixels are too narrow: the processor makes one side 0 pixels long")
        view = View(rows * self.patch_size[0], columns * self.patch_size[1])
        return ImageLayout(height, width, (view,), rows * (columns + 1), (rows, columns), num_markers=rows)

    def attention_groups(self, layout: ImageLayout) -> list[tuple[int, int]]:
        """Returns one group of the tokens of an image; patches that the model merges (Mistral 3) count as one."""
        rows, columns = layout.grid
        return [(1, rows * columns)]

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        return self.break_token.join([self.image_token * columns] * rows) + self.end_token

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        return padded_to_largest([image for sample in samples for image in sample])


@dataclass(frozen=True, kw_only=True)
class LightOnOcr(Pixtral):
    """LightOnOCR: Pixtral without markers in the text."""

    token_side: int = 28
    """Pixels of a token's side: patch_size * spatial_merge_size of the processor."""
    image_token: str = "<|image_pad|>"

    family: ClassVar[str] = "lighton_ocr"
    around: ClassVar[tuple[str, ...]] = ("LightOnOcrProcessor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        side = config.outer_integer("patch_size", 14, least=1, most=LARGEST_PATCH)
        side *= config.outer_integer("spatial_merge_size", 2, least=1, most=MOST_MERGED)
        # Its processor does not pass its patch_size to the image processor, as Pixtral's does.
        config.outer = {name: value for name, value in config.outer.items() if name != "patch_size"}
        return super().from_config(config).with_fields(token_side=side)

    def layout(self, width: int, height: int) -> ImageLayout:
        (view,) = super().layout(width, height).views
        rows, columns = view.height // self.token_side, view.width // self.token_side
        return ImageLayout(height, width, (view,), rows * columns, (rows, columns))

    def image_text(self, layout: ImageLayout) -> str:
        return self.image_token * layout.num_features


def padded_to_largest(inputs: Sequence[VisionInput]) -> dict[str, Any]:
    """Returns images of one tile with zeros at the bottom and on the right, and their (height, width).

    Args:
        inputs: At least one.

    Returns:
        pixel_values, dtype[images, 3, largest height, largest width], and image_sizes, int64[images, 2].
    """
    import torch

    images = [image.values[0] for image in inputs]
    sizes = torch.tensor([image.shape[1:] for image in images], dtype=torch.int64)
    height, width = sizes.max(0).values.tolist()
    if len({image.shape for image in images}) == 1:
        return {"pixel_values": torch.stack(images), "image_sizes": sizes}
    values = zero_values((len(images), 3, height, width), images[0].dtype, images[0].device)
    for row, image in zip(values, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return {"pixel_values": values, "image_sizes": sizes}
