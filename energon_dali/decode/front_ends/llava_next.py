"""LLaVA-NeXT: tiles of the best resolution of a list, and tokens without those of the padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.any_resolution import (
    AnyResolution,
    choose_resolution,
    take_resolution_fields,
    without_padding,
)
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.processor_config import ProcessorConfig

_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True, kw_only=True)
class LlavaNext(AnyResolution):
    """Tiles of the best of several resolutions, and an overview. `layout.grid` is (height, width) of the resolution.

    Tokens: those of the overview, those of the tiles without padding, and one at the end of each row of the tiles.
    """

    patch_size: int = 14
    """Pixels of a patch's side in the vision tower."""
    vision_feature_select_strategy: str | None = "default"
    """"default" drops one feature of an image, the class token; others keep all."""
    num_additional_image_tokens: int = 1
    """Features of the vision tower next to those of patches, such as its class token."""

    family: ClassVar[str] = "llava_next"
    processors: ClassVar[tuple[str, ...]] = ("LlavaNextImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"aspect_ratio_setting", "pad_size"})

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self.tile_size
        if not 0 < self.patch_size <= min(height, width):
            raise ConfigError(
                f"LlavaNext(patch_size={self.patch_size}) leaves no whole patch in a tile of {height} x {width}, so "
                "the tokens of an image cannot be counted. Give a patch_size between 1 and the side of a tile "
                "(size and crop_size)."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        fields = take_resolution_fields(
            config, {"shortest_edge": 224}, {"height": 224, "width": 224}, True, _RESOLUTIONS
        )
        outer = config.outer
        around = config.take_around("LlavaNextProcessor", "LlavaNextVideoProcessor")
        # LLaVA-NeXT's processor pads whatever its image processor says.
        fields["pads_batch"] = fields["pads_batch"] or around is not None
        if "patch_size" in outer:
            fields["patch_size"] = config.outer_integer("patch_size", 14, least=1)
            fields["vision_feature_select_strategy"] = config.outer_strategy()
            fields["num_additional_image_tokens"] = config.outer_integer("num_additional_image_tokens", 0)
        return cls(**fields)

    def layout(self, width: int, height: int) -> ImageLayout:
        views = self.views(height, width)
        canvas = choose_resolution(height, width, self.resolutions)
        tile_height, tile_width = self.tile_size
        tile_rows, tile_columns = tile_height // self.patch_size, tile_width // self.patch_size
        rows, columns = without_padding(
            height, width, tile_rows * (canvas[0] // tile_height), tile_columns * (canvas[1] // tile_width)
        )
        tokens = tile_rows * tile_columns + self.num_additional_image_tokens + rows * columns + rows
        if self.vision_feature_select_strategy == "default":
            tokens -= 1
        return ImageLayout(height, width, views, tokens, canvas)
