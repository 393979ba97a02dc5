"""Emu3: images at their own size within a range of pixels, padded to the largest of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.pixtral import padded_to_largest
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_AREA, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH, MOST_PIXELS, smart_resize
from energon_dali.errors import DecodeError

_TOKEN_SIDE = 8
"""Pixels of a token's side, whatever spatial_factor is."""


@dataclass(frozen=True, kw_only=True)
class Emu3(FrontEnd):
    """Resizes an image to multiples of a factor within a range of pixels.

    `layout.grid` is (rows, columns) of tokens. Values: dtype[1, 3, height, width]; `batch_vision` pads them with zeros
    at the bottom and on the right.
    """

    min_pixels: int = 512 * 512
    """Fewest pixels after resizing."""
    max_pixels: int = 1024 * 1024
    """Most pixels after resizing."""
    spatial_factor: int = 8
    """Both sides are multiples of it."""
    resizes: bool = True
    """Whether images are resized."""
    image_token: str = "<image>"
    start_token: str = "<|image start|>"
    """Text before the size of an image."""
    fake_token: str = "<|image token|>"
    """Text after it, before the tokens."""
    end_of_frame_token: str = "<|extra_201|>"
    """Text after the tokens."""
    end_token: str = "<|image end|>"
    """Text after that."""

    family: ClassVar[str] = "emu3"
    processors: ClassVar[tuple[str, ...]] = ("Emu3ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_pad", True, "images of different sizes form no batch without padding")
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
            min_pixels=config.take_integer("min_pixels", cls.min_pixels, most=LARGEST_AREA),
            max_pixels=config.take_integer("max_pixels", cls.max_pixels, most=MOST_PIXELS),
            spatial_factor=config.take_integer("spatial_factor", 8, most=LARGEST_PATCH),
            resizes=config.take_flag("do_resize", True),
            image_token=config.outer_text("image_token", cls.image_token),
            start_token=config.outer_text("image_start_token", cls.start_token),
            fake_token=config.outer_text("fake_token_around_image", cls.fake_token),
            end_of_frame_token=config.outer_text("eof_token", cls.end_of_frame_token),
            end_token=config.outer_text("image_end_token", cls.end_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        if height in (1, 3):
            raise DecodeError(f"{width} x {height} pixels: the processor takes 1 or 3 rows for channels")
        view = View(height, width)
        if self.resizes:
            view = View(*smart_resize(height, width, self.spatial_factor, self.min_pixels, self.max_pixels))
        rows, columns = view.height // _TOKEN_SIDE, view.width // _TOKEN_SIDE
        return ImageLayout(height, width, (view,), rows * (columns + 1), (rows, columns))

    def image_text(self, layout: ImageLayout) -> str:
        tokens = self.image_token * layout.num_features
        return f"{self.start_token}{_size(layout)}{self.fake_token}{tokens}{self.end_of_frame_token}{self.end_token}"

    def text_tokens(self, layout: ImageLayout) -> int:
        """Returns the tokens of `image_text`, of which each digit is one in the tokenizers of the published models."""
        return layout.num_tokens + 4 + len(_size(layout))

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        return padded_to_largest([image for sample in samples for image in sample])


def _size(layout: ImageLayout) -> str:
    rows, columns = layout.grid
    return f"{rows}*{columns}"
