"""LLaVA-OneVision: tiles as LLaVA-NeXT's with a limit of tokens; in samples with several images one square each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, background_color, square_view
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.llava_next import (
    AnyResolution,
    choose_resolution,
    take_resolution_fields,
    without_padding,
)
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.errors import ConfigError

_SIDES = (384, 768, 1152, 1536, 1920, 2304)
_RESOLUTIONS = tuple((height, width) for height in _SIDES for width in _SIDES)
_MOST_DIGITS = 4
"""Of the number in vision_aspect_ratio."""
_SHRINKS_FROM = 1.1
"""Features are interpolated to fewer if their grid is longer than the limit's by more than this factor."""


@dataclass(frozen=True, kw_only=True)
class LlavaOnevision(AnyResolution):
    """Tiles of the best of several resolutions, and an overview. `layout.grid` is (height, width) of the resolution.

    Tokens: those of the overview, those of the tiles without padding, interpolated to at most about `max_tiles` tiles,
    and one at the end of each row of the tiles. With `several_images` each image is padded to a square and becomes one
    tile; `layout.grid` is then empty.
    """

    several_images: bool = False
    """Whether the images belong to samples with several: the processor does not cut these into tiles. The processor
    decides it per sample; give the handles of such samples this front end: `handle.with_front_end`."""
    num_image_tokens: int = 729
    """Features of the vision tower for one tile."""
    vision_feature_select_strategy: str | None = "full"
    """"default" drops one feature of an image, the class token; others keep all."""
    max_tiles: int = 9
    """Most tiles whose features an image keeps: the number in vision_aspect_ratio="anyres_max_9"."""
    background: tuple[int, int, int] | None = (122, 116, 104)
    """Bytes around an image that is padded to a square: image_mean. None if that is not between 0 and 1."""

    family: ClassVar[str] = "llava_onevision"
    processors: ClassVar[tuple[str, ...]] = ("LlavaOnevisionImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes", "batch_num_images")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"pad_size"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.several_images and self.background is None:
            raise ConfigError(
                "LlavaOnevision(several_images=True) pads images with the colour of image_mean, which is not between 0 "
                "and 1. The processor fails likewise. Give a background."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        fields = take_resolution_fields(config, {"height": 384, "width": 384}, {}, False, _RESOLUTIONS)
        outer = config.outer
        config.take_around("LlavaOnevisionProcessor")
        fields["background"] = background_color(config, CLIP_MEAN)
        if "num_image_tokens" in outer:
            fields["num_image_tokens"] = config.outer_integer("num_image_tokens", 729, least=1)
            fields["vision_feature_select_strategy"] = config.outer_strategy()
        given = config.outer_text("vision_aspect_ratio", "anyres_max_9")
        limit = given.removeprefix("anyres_max_")
        if not limit.isdecimal() or len(limit) > _MOST_DIGITS or int(limit) == 0:
            raise config.invalid(
                "vision_aspect_ratio",
                given,
                f"anyres_max_ with a number of at most {_MOST_DIGITS} digits: anyres_max_9",
            )
        return cls(max_tiles=int(limit), **fields)

    def layout(self, width: int, height: int) -> ImageLayout:
        dropped = 1 if self.vision_feature_select_strategy == "default" else 0
        if self.several_images:
            tokens = self.num_image_tokens + 1 - dropped  # one ends the image
            side = max(height, width)
            assert self.background is not None
            square = square_view(height, width, self.background)
            return ImageLayout(height, width, (square, self.finished_view((side, side), source=0)), tokens)
        views = self.views(height, width)
        canvas = choose_resolution(height, width, self.resolutions)
        tile_height, tile_width = self.tile_size
        side = int(math.sqrt(self.num_image_tokens))
        rows, columns = without_padding(
            height, width, side * (canvas[0] // tile_height), side * (canvas[1] // tile_width)
        )
        shrink = math.sqrt(rows * columns / (self.max_tiles * side**2))
        if shrink > _SHRINKS_FROM:
            rows, columns = int(rows // shrink), int(columns // shrink)
        return ImageLayout(height, width, views, self.num_image_tokens + rows * columns + rows - dropped, canvas)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        if len(samples) == 1 and not any(_of_several(image) for image in samples[0]):
            samples = [[image] for image in samples[0]]  # a list without samples, which the processor takes likewise
        counts = [len(sample) for sample in samples if sample]
        for sample in samples:
            for image in sample:
                wanted = len(sample) > 1
                if _of_several(image) != wanted:
                    raise ConfigError(
                        f"batch_vision was given a sample with {len(sample)} images, one of which was made with "
                        f"several_images={not wanted}. LLaVA-OneVision cuts only the image of samples with one into "
                        f"tiles. Give the handles of this sample a front end with several_images={wanted}, by "
                        "`handle.with_front_end`, and give batch_vision one list of images per sample."
                    )
        return {**super().collate(samples), "batch_num_images": torch.tensor(counts, dtype=torch.int64)}

    def batches_with(self, other: FrontEnd) -> bool:
        return isinstance(other, LlavaOnevision) and other.with_fields(several_images=self.several_images) == self


def _of_several(image: VisionInput) -> bool:
    return isinstance(image.front_end, LlavaOnevision) and image.front_end.several_images
