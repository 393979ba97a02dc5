"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V: images at their own size, as patches in the order in which they merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_patches
from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.vision_input import VisionInput
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.front_ends.processor_config import ProcessorConfig
    from energon_dali.decode.front_ends.resampling import Pixels

_MAX_ASPECT_RATIO = 200


@dataclass(frozen=True, kw_only=True)
class Qwen2VL(FrontEnd):
    """Resizes an image to whole merge blocks within a range of pixels, and cuts it into patches.

    `layout.grid` is (1, rows, columns) of patches. Values: dtype[patches, 3 * temporal_patch_size * patch_size ** 2];
    a still image fills the frames of a temporal patch with copies.
    """

    min_pixels: int
    """Fewest pixels after resizing."""
    max_pixels: int
    """Most pixels after resizing."""
    patch_size: int = 14
    """Pixels of a patch's side."""
    temporal_patch_size: int = 2
    """Frames of a patch."""
    merge_size: int = 2
    """Patches per side that the model merges into one token."""
    resizes: bool = True
    """Whether images are resized; if not, their sides must be multiples of patch_size * merge_size."""

    family: ClassVar[str] = "qwen2_vl"
    processors: ClassVar[tuple[str, ...]] = ("Qwen2VLImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_thw")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
        # min_pixels and max_pixels are older names, and win over the size, as in transformers.
        min_pixels, max_pixels = config.take("min_pixels"), config.take("max_pixels")
        if {"shortest_edge", "longest_edge"} - size.keys():
            raise config.error(f"size={size} has no shortest_edge and longest_edge, which mean pixels here")
        return cls(
            values=config.take_values(mean=CLIP_MEAN, std=CLIP_STD),
            filter=config.take_filter("bicubic"),
            convert_rgb=bool(config.take("do_convert_rgb", True)),
            min_pixels=int(min_pixels or size["shortest_edge"]),
            max_pixels=int(max_pixels or size["longest_edge"]),
            patch_size=int(config.take("patch_size", 14)),
            temporal_patch_size=int(config.take("temporal_patch_size", 2)),
            merge_size=int(config.take("merge_size", 2)),
            resizes=bool(config.take("do_resize", True)),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        block = self.patch_size * self.merge_size
        if self.resizes:
            out_height, out_width = smart_resize(height, width, block, self.min_pixels, self.max_pixels)
        else:
            out_height, out_width = height, width
            if height % block or width % block:
                raise DecodeError(
                    f"The processor does not resize, and {width} x {height} pixels are not multiples of {block}"
                )
        rows, columns = out_height // self.patch_size, out_width // self.patch_size
        return ImageLayout(
            height, width, (View(out_height, out_width),), rows * columns // self.merge_size**2, (1, rows, columns)
        )

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        ((_, canvas),) = self.canvases(pixels, layout)
        patches = cut_patches(canvas, self.patch_size, self.merge_size)  # uint8[patches, 3, patch_size ** 2]
        values = self.values.convert(patches, self.torch_dtype, channel_axis=1, repeat=self.temporal_patch_size)
        return values.view(len(patches), -1)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        return {
            "pixel_values": torch.cat([image.values for image in images]),
            "image_grid_thw": torch.tensor([image.layout.grid for image in images], dtype=torch.int64),
        }


def smart_resize(height: int, width: int, block: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Returns (height, width) rounded to blocks and brought into a range of pixels, with about the same aspect ratio.

    The rule is that of Qwen2-VL's image processor in transformers.

    Raises:
        DecodeError: One side is more than 200 times as long as the other.
    """
    if max(height, width) / min(height, width) > _MAX_ASPECT_RATIO:
        raise DecodeError(
            f"{width} x {height} pixels have an aspect ratio above {_MAX_ASPECT_RATIO}, which the processor refuses"
        )
    # Python's round (half to even), as in the processor.
    rows, columns = round(height / block), round(width / block)
    if rows * columns * block * block > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        rows = max(1, math.floor(height / shrink / block))
        columns = max(1, math.floor(width / shrink / block))
    elif rows * columns * block * block < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows, columns = math.ceil(height * grow / block), math.ceil(width * grow / block)
    return rows * block, columns * block
