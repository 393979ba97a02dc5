"""DeepSeek-VL and Janus: images fitted into a square, with the colour of image_mean around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.constant_text import ConstantText, TextRule, take_text
from energon_dali.decode.front_ends.fixed_size import (
    CLIP_MEAN,
    CLIP_STD,
    background_color,
    require_one_size,
    square_view,
)
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.processor_config import (
    CROP_AND_PAD,
    LARGEST_FACTOR,
    LARGEST_SIDE,
    SMALLEST_FACTOR,
    ProcessorConfig,
)
from energon_dali.decode.front_ends.resampling import Filter, Pixels
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

_PLACEHOLDER = "<image_placeholder>"
_DEEPSEEK_TEXT = TextRule(576, _PLACEHOLDER, key="num_image_tokens")
_TEXTS = {
    "DeepseekVLProcessor": _DEEPSEEK_TEXT,
    "DeepseekVLHybridProcessor": _DEEPSEEK_TEXT,
    "JanusProcessor": TextRule(
        576, _PLACEHOLDER, "<begin_of_image>", "<end_of_image>", "num_image_tokens", "boi_token", "eoi_token"
    ),
}
_GRAY = (127, 127, 127)
_RESCALED = PixelValues()


@dataclass(frozen=True, kw_only=True)
class DeepseekVL(ConstantText):
    """Resizes the longer side to a length, and pads to a square. Values: dtype[1, 3, side, side]."""

    side: int | None = 384
    """Pixels of the longer side, and of the square; None does not resize."""
    min_size: int = 14
    """Fewest pixels of the shorter side."""
    background: tuple[int, int, int] | None = _GRAY
    """Bytes around an image: image_mean. None does not pad."""

    family: ClassVar[str] = "deepseek_vl"
    processors: ClassVar[tuple[str, ...]] = ("DeepseekVLImageProcessor", "JanusImageProcessor")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"background_color"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        around = config.take_around(*_TEXTS)
        pads = config.take_flag("do_pad", True)
        background = background_color(config, CLIP_MEAN)
        if pads and background is None:
            raise config.error("image_mean is not a colour to pad with: it must be between 0 and 1")
        side = config.take_square("size", 384)
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic", rgb=False),
            side=side if config.take_flag("do_resize", True) else None,
            min_size=config.take_integer("min_size", 14, most=LARGEST_SIDE),
            background=background if pads else None,
            **(take_text(config, _TEXTS[around]) if around else {}),
        )

    def fitted(self, height: int, width: int, side: int | None) -> tuple[int, int]:
        """Returns (height, width) with the longer side as wanted; None changes nothing."""
        if side is None:
            return height, width
        scale = side / max(height, width)
        return max(round(height * scale), self.min_size), max(round(width * scale), self.min_size)

    def layout(self, width: int, height: int) -> ImageLayout:
        view = View(*self.fitted(height, width, self.side))
        if self.background is not None and view.height != view.width:
            view = replace(square_view(view.height, view.width, self.background), emitted=True)
        return self.counted(ImageLayout(height, width, (view,), 0))

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {}


@dataclass(frozen=True, kw_only=True)
class DeepseekVLHybrid(DeepseekVL):
    """Two squares of an image, the smaller one resampled from the larger.

    Values: dtype[1, 3, side ** 2 + high_res_side ** 2]: the pixels of the smaller square, then those of the larger.
    `batch_vision` separates them.
    """

    side: int = 384
    high_res_side: int = 1024
    """Pixels of the side of the larger square."""
    high_res_filter: Filter = "bicubic"
    """The filter of the resampling to it."""
    high_res_values: PixelValues = _RESCALED
    """What a byte of it becomes."""
    high_res_background: tuple[int, int, int] = _GRAY
    """Bytes around an image in it."""

    family: ClassVar[str] = "deepseek_vl_hybrid"
    processors: ClassVar[tuple[str, ...]] = ("DeepseekVLHybridImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "high_res_pixel_values")
    unused_keys: ClassVar[frozenset[str]] = DeepseekVL.unused_keys | {"high_res_background_color"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "the two squares would have the sizes of images")
        made = super().from_config(config)
        mean = config.take_triple("high_res_image_mean", CLIP_MEAN, least=-LARGEST_FACTOR)
        std = config.take_triple("high_res_image_std", CLIP_STD, least=SMALLEST_FACTOR)
        values = made.values if made.values.mean is None else replace(made.values, mean=mean, std=std)
        background = background_color(config, CLIP_MEAN, "high_res_image_mean")
        low, high = config.take_filter("bicubic"), config.take_filter("bicubic", "high_res_resample")
        if background is None:
            raise config.error("high_res_image_mean is not a colour to pad with: it must be between 0 and 1")
        return made.with_fields(
            high_res_side=config.take_square("high_res_size", 1024),
            # The PIL backend takes 0, the number of "nearest", for a missing value, and resamples as `resample` says.
            high_res_filter=low if high == "nearest" and config.arithmetic == "pil" else high,
            high_res_values=values,
            high_res_background=background,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        high = View(*self.fitted(height, width, self.high_res_side), filter=self.high_res_filter)
        if self.background is not None and high.height != high.width:
            square = square_view(high.height, high.width, self.high_res_background)
            high = replace(square, emitted=True, filter=self.high_res_filter)
        low = View(*self.fitted(*high.canvas_size, self.side), source=0)
        return self.counted(ImageLayout(height, width, (high, low), 0))

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        import torch

        high, low = (canvas for _, canvas in self.canvases(pixels, layout))
        return torch.cat([low.flatten(-2), high.flatten(-2)], -1)[None]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        high, low = (canvas for _, canvas in self.canvases(Pixels(tensor=pixels), layout))
        return torch.cat([low.flatten(-2), high.flatten(-2)], -1)[:, None]

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return tuple(pixels.shape)

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        height, width = layout.views[1].canvas_size
        low, high = (slice(None, height * width), slice(height * width, None))
        self.values.convert(pixels[..., low], self.torch_dtype, channel_axis=1, out=out[..., low])
        self.high_res_values.convert(pixels[..., high], self.torch_dtype, channel_axis=1, out=out[..., high])

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        images = [image for sample in samples for image in sample]
        self.facts(images)
        high, low = (view.canvas_size for view in images[0].layout.views)
        values: Any = self.concatenated(images)
        return {
            "pixel_values": values[..., : low[0] * low[1]].unflatten(-1, low),
            "high_res_pixel_values": values[..., low[0] * low[1] :].unflatten(-1, high),
        }

    def fold_normalization(self, patch_embedding: torch.nn.Module) -> None:
        """Raises where the two squares are normalised differently, so that one layer cannot do it.

        Args:
            patch_embedding: The first layer of one vision encoder.

        Raises:
            ConfigError: As the front end of others, and if the values of the two squares differ.
        """
        if self.values != self.high_res_values:
            raise ConfigError(
                f"The two squares of an image are normalised differently: {self.values} and {self.high_res_values}. "
                'Take a dtype such as "bfloat16", with which the front end normalises.'
            )
        super().fold_normalization(patch_embedding)
