"""Relatives of Qwen2-VL with other limits or another order of patches: ERNIE 4.5 VL, PaddleOCR-VL, Kimi-K2.5, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.glm4v import Glm4V
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_AREA, LARGEST_COUNT, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import (
    MOST_MERGED,
    Qwen2VL,
    check_whole_blocks,
    smart_resize,
    take_patches,
)
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Ernie45VL(Qwen2VL):
    """ERNIE 4.5 VL: Qwen2-VL with patches of one frame."""

    image_token: str = "<|IMAGE_PLACEHOLDER|>"

    family: ClassVar[str] = "ernie4_5_vl"
    processors: ClassVar[tuple[str, ...]] = ("Ernie4_5_VLMoeImageProcessor",)
    default_pixels: ClassVar[tuple[int, int]] = (56 * 56, 28 * 28 * 6177)
    default_patches: ClassVar[tuple[int, int, int]] = (14, 1, 2)
    older_names: ClassVar[bool] = False
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"min_pixels", "max_pixels"}


@dataclass(frozen=True, kw_only=True)
class VideoLlama3(Qwen2VL):
    """VideoLLaMA 3: Qwen2-VL with patches of one frame that are not merged unless the configuration says so."""

    image_token: str = "<image>"

    family: ClassVar[str] = "video_llama_3"
    processors: ClassVar[tuple[str, ...]] = ("VideoLlama3ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_thw", "image_merge_sizes")
    default_mean: ClassVar[tuple[float, ...]] = HALF
    default_std: ClassVar[tuple[float, ...]] = HALF
    default_patches: ClassVar[tuple[int, int, int]] = (14, 1, 1)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {**super().facts(images), "image_merge_sizes": [self.merge_size] * len(images)}


@dataclass(frozen=True, kw_only=True)
class MiniMaxM3VL(Qwen2VL):
    """MiniMax M3 VL: Qwen2-VL with another limit, and two markers around an image that the processor does not count."""

    image_token: str = "]<]image[>["
    start_token: str = "]<]start of image[>["
    """Text before the tokens of an image."""
    end_token: str = "]<]end of image[>["
    """Text after them."""

    family: ClassVar[str] = "minimax_m3_vl"
    processors: ClassVar[tuple[str, ...]] = ("MiniMaxM3VLImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    default_pixels: ClassVar[tuple[int, int]] = (4 * 28 * 28, 451584)
    float_backends: ClassVar[frozenset[str]] = frozenset()

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.start_token}{self.image_token * layout.num_features}{self.end_token}"

    def text_tokens(self, layout: ImageLayout) -> int:
        return layout.num_tokens + 2


@dataclass(frozen=True, kw_only=True)
class HunyuanVL(Qwen2VL):
    """Hunyuan-VL: patches row by row, and a token more at the end of each row of an image and around it."""

    spatial_patch_size: int = 1
    """Merged patches per side of a token in the text."""
    cat_extra_token: bool = True
    """Whether two more tokens are around those of an image."""
    image_token: str = "<\uff5chy_place\u2581holder\u2581no\u2581102\uff5c>"

    family: ClassVar[str] = "hunyuan_vl"
    processors: ClassVar[tuple[str, ...]] = ("HunYuanVLImageProcessor",)
    default_pixels: ClassVar[tuple[int, int]] = (512 * 512, 2048 * 2048)
    default_patches: ClassVar[tuple[int, int, int]] = (16, 1, 2)
    row_by_row: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        extra = config.outer_flag("cat_extra_token", True)
        spatial = config.take_integer("spatial_patch_size", 1, most=MOST_MERGED)
        made = super().from_config(config)
        # The processor resamples by this filter, whatever `resample` says.
        return made.with_fields(filter="bicubic", spatial_patch_size=spatial, cat_extra_token=extra)

    def layout(self, width: int, height: int) -> ImageLayout:
        made = super().layout(width, height)
        _, rows, columns = made.grid
        block = self.merge_size * self.spatial_patch_size
        tokens = rows // block * (columns // block + 1) + 2 * self.cat_extra_token
        return ImageLayout(height, width, made.views, tokens, made.grid)


@dataclass(frozen=True, kw_only=True)
class _SquarePatches(Qwen2VL):
    """Patches row by row that keep their shape: dtype[patches, 3 * temporal_patch_size, patch_size, patch_size]."""

    row_by_row: ClassVar[bool] = True

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return len(pixels), 3 * self.temporal_patch_size, self.patch_size, self.patch_size


@dataclass(frozen=True, kw_only=True)
class PaddleOcrVL(_SquarePatches):
    """PaddleOCR-VL: sides shorter than a block are enlarged to one first. Patches keep their shape."""

    image_token: str = "<|IMAGE_PLACEHOLDER|>"

    family: ClassVar[str] = "paddleocr_vl"
    processors: ClassVar[tuple[str, ...]] = ("PaddleOCRVLImageProcessor",)
    default_pixels: ClassVar[tuple[int, int]] = (384 * 384, 1536 * 1536)
    default_patches: ClassVar[tuple[int, int, int]] = (14, 1, 2)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        block = self.patch_size * self.merge_size
        if height < block:
            width, height = round(width * block / height), block
        if width < block:
            height, width = round(height * block / width), block
        return smart_resize(height, width, block, self.min_pixels, self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class KimiK25(_SquarePatches):
    """Kimi-K2.5: images shrink to a number of patches, and are padded with black to whole blocks of them.

    `layout.grid` is (1, rows, columns) of patches. Patches keep their shape.
    """

    max_patches: int = 16384
    """Most patches of an image before it is padded."""
    max_side: int = 512
    """Most patches of a side ("size")."""
    image_token: str = "<|media_pad|>"

    family: ClassVar[str] = "kimi_k25"
    processors: ClassVar[tuple[str, ...]] = ("Kimi_K25ImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    float_backends: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"max_height": 512, "max_width": 512})
        if size.keys() != {"max_height", "max_width"} or size["max_height"] != size["max_width"]:
            raise config.error(f"size={size} is not a max_height and an equal max_width")
        return cls(
            **config.take_conversion(HALF, HALF, "bicubic"),
            **take_patches(config, 14, 1),
            min_pixels=1,
            max_pixels=LARGEST_AREA,
            max_patches=config.take_integer("max_patches", 16384, most=LARGEST_COUNT),
            max_side=size["max_height"],
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        block = self.patch_size * self.merge_size
        view = View(height, width)
        if self.resizes:
            inner = self.resized(height, width)
            canvas = (math.ceil(inner[0] / block) * block, math.ceil(inner[1] / block) * block)
            view = View(*inner, canvas=canvas)
        else:
            check_whole_blocks(height, width, self.patch_size)
        rows, columns = (side // self.patch_size for side in view.canvas_size)
        return ImageLayout(height, width, (view,), rows * columns // self.merge_size**2, (1, rows, columns))

    def resized(self, height: int, width: int) -> tuple[int, int]:
        patch, most = self.patch_size, self.max_side * self.patch_size
        patches = max(1, height // patch) * max(1, width // patch)
        scale = min(1.0, math.sqrt(self.max_patches / patches), most / height, most / width)
        return min(max(1, int(height * scale)), most), min(max(1, int(width * scale)), most)


@dataclass(frozen=True, kw_only=True)
class Cosmos3Edge(Glm4V):
    """Cosmos 3 Edge: GLM-4V with the channel of each pixel last in a patch, and the copies of a frame after that."""

    image_token: str = "<|image_pad|>"

    family: ClassVar[str] = "cosmos3_edge"
    processors: ClassVar[tuple[str, ...]] = ("Cosmos3EdgeImageProcessor",)
    channels_last: ClassVar[bool] = True
    default_pixels: ClassVar[tuple[int, int]] = (256 * 256, 4096 * 4096)
    default_mean: ClassVar[tuple[float, ...]] = HALF
    default_std: ClassVar[tuple[float, ...]] = HALF
    default_patches: ClassVar[tuple[int, int, int]] = (16, 1, 2)

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        return super().arrange(pixels, layout).transpose(1, 2).contiguous()  # uint8[patches, patch_size ** 2, 3]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        return super().arrange_alike(pixels, layout).transpose(2, 3).contiguous()

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        if self.temporal_patch_size == 1:
            self.values.convert(pixels, self.torch_dtype, channel_axis=2, out=out.view(pixels.shape))
            return
        values = self.values.convert(pixels, self.torch_dtype, channel_axis=2)
        out.view(len(pixels), -1, self.temporal_patch_size).copy_(values.flatten(1)[..., None])
