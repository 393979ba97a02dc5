"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images at their own size, as patches in the order in which they merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_patches
from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_AREA, ProcessorConfig
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch


_MAX_ASPECT_RATIO = 200
LARGEST_PATCH = 256
"""Most pixels of a patch's side."""
MOST_MERGED = 16
"""Most patches per side, or frames, that become one."""
MOST_PIXELS = 1 << 40
"""Largest number of pixels of a range; a large one means no limit."""


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
    image_token: str = "<|image_pad|>"
    """Stands for an image in the text, and for each of its features after `expand_text`."""

    family: ClassVar[str] = "qwen2_vl"
    processors: ClassVar[tuple[str, ...]] = (
        "Qwen2VLImageProcessor",
        "Qwen2_5_VLImageProcessor",
        "CohereCompassImageProcessor",
    )
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_grid_thw")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD
    float_backends: ClassVar[frozenset[str]] = frozenset({"pil"})

    default_pixels: ClassVar[tuple[int, int]] = (56 * 56, 28 * 28 * 1280)
    """(min_pixels, max_pixels) of a processor that does not say."""
    default_mean: ClassVar[tuple[float, ...]] = CLIP_MEAN
    """image_mean likewise."""
    default_std: ClassVar[tuple[float, ...]] = CLIP_STD
    """image_std likewise."""
    default_patches: ClassVar[tuple[int, int, int]] = (14, 2, 2)
    """patch_size, temporal_patch_size and merge_size likewise."""
    older_names: ClassVar[bool] = True
    """Whether min_pixels and max_pixels, older names, win over size; if not, the processor does not read them."""
    row_by_row: ClassVar[bool] = False
    """Whether patches follow each other row by row; if not, those that merge are next to each other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patches(self)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        if cls.older_names:
            min_pixels, max_pixels = take_pixel_range(config, cls.default_pixels)
        else:
            min_pixels, max_pixels = check_pixels(config, take_pixels(config, cls.default_pixels))
        return cls(
            **config.take_conversion(cls.default_mean, cls.default_std, "bicubic"),
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            **take_patches(config, *cls.default_patches),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        if not self.resizes:
            check_whole_blocks(height, width, self.patch_size * self.merge_size)
        out_height, out_width = self.resized(height, width) if self.resizes else (height, width)
        rows, columns = out_height // self.patch_size, out_width // self.patch_size
        return ImageLayout(
            height, width, (View(out_height, out_width),), rows * columns // self.merge_size**2, (1, rows, columns)
        )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) after resizing.

        Raises:
            DecodeError: The processor refuses images of this size.
        """
        return smart_resize(height, width, self.patch_size * self.merge_size, self.min_pixels, self.max_pixels)

    @property
    def _block(self) -> int:
        """Patches of the side of a block whose patches are next to each other."""
        return 1 if self.row_by_row else self.merge_size

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        ((_, canvas),) = self.canvases(pixels, layout)
        return cut_patches(canvas, self.patch_size, self._block)  # uint8[patches, 3, patch_size ** 2]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        from energon_dali.kernels.merge_patches import merge_patches

        ((_, canvases),) = self.canvases(Pixels(tensor=pixels), layout)
        side = (self.patch_size, self.patch_size)
        cut: torch.Tensor = merge_patches(canvases[:, None], side, merge_size=self._block)
        return cut.flatten(4).squeeze(1)

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return len(pixels), 3 * self.temporal_patch_size * self.patch_size**2

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        times = self.temporal_patch_size
        shape = (len(pixels), 3, -1) if times == 1 else (len(pixels), 3, times, self.patch_size**2)
        self.values.convert(pixels, self.torch_dtype, channel_axis=1, repeat=times, out=out.view(shape))

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"image_grid_thw": [image.layout.grid for image in images]}


def take_pixel_range(config: ProcessorConfig, default: tuple[int, int]) -> tuple[int, int]:
    """Returns the fewest and the most pixels after resizing.

    Args:
        config: Its size has them as shortest_edge and longest_edge; min_pixels and max_pixels, which are older names,
            win over them, as in transformers.
        default: What the processor takes where its file does not say.

    Raises:
        ConfigError: One of the two is missing, or out of range.
    """
    size = take_pixels(config, default)
    for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        size[name] = config.take_integer(older, size.get(name, 0), least=0, most=MOST_PIXELS) or size.get(name, 0)
    return check_pixels(config, size)


def take_pixels(config: ProcessorConfig, default: tuple[int, int]) -> dict[str, int]:
    """Returns the size of a configuration whose sides are numbers of pixels of the whole image."""
    return config.take_size("size", {"shortest_edge": default[0], "longest_edge": default[1]}, most=MOST_PIXELS)


def check_pixels(config: ProcessorConfig, size: dict[str, int]) -> tuple[int, int]:
    """Returns the fewest and the most pixels of a size that `take_pixels` returned.

    Raises:
        ConfigError: One of the two is missing, or the fewest are too many.
    """
    fewest, most = size.get("shortest_edge", 0), size.get("longest_edge", 0)
    if not fewest or not most:
        raise config.error(f"size={size} has no shortest_edge and longest_edge, which mean pixels here")
    if fewest > LARGEST_AREA:
        raise config.error(
            f"size={size} enlarges every image to {fewest:,} pixels (shortest_edge, or min_pixels); it must be at most "
            f"{LARGEST_AREA:,}"
        )
    return fewest, most


def take_patches(
    config: ProcessorConfig, patch_size: int, temporal_patch_size: int = 2, merge_size: int = 2
) -> dict[str, Any]:
    """Returns the fields patch_size, temporal_patch_size, merge_size and resizes.

    Args:
        config: Of the processor.
        patch_size: Default of patch_size.
        temporal_patch_size: Likewise.
        merge_size: Likewise.

    Raises:
        ConfigError: A value is out of range.
    """
    return {
        "patch_size": config.take_integer("patch_size", patch_size, most=LARGEST_PATCH),
        "temporal_patch_size": config.take_integer("temporal_patch_size", temporal_patch_size, most=MOST_MERGED),
        "merge_size": config.take_integer("merge_size", merge_size, most=MOST_MERGED),
        "resizes": config.take_flag("do_resize", True),
    }


def check_patches(front_end: object) -> None:
    """Checks the sizes of patches and the range of pixels.

    Raises:
        ConfigError: One of them is not a whole number of at least 1.
    """
    for name in ("min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size"):
        value = getattr(front_end, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"{type(front_end).__name__}({name}={value!r}) is invalid: it must be a whole number of at least 1."
            )


def check_whole_blocks(height: int, width: int, block: int) -> None:
    """Checks that the sides of what is not resized are multiples of a block.

    Raises:
        DecodeError: They are not.
    """
    if height % block or width % block:
        raise DecodeError(f"The processor does not resize, and {width} x {height} pixels are not multiples of {block}")


def smart_resize(height: int, width: int, block: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Returns (height, width) rounded to blocks and brought into a range of pixels, with about the same aspect ratio.

    The rule is that of Qwen2-VL's image processor in transformers.

    Raises:
        DecodeError: One side is more than 200 times as long as the other.
    """
    return fit_blocks(1, 1, height, width, block, min_pixels, max_pixels)


def fit_blocks(
    frames: int, temporal: int, height: int, width: int, block: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Returns the same for frames of which the range counts all together, in whole temporal patches.

    Raises:
        DecodeError: One side is more than 200 times as long as the other.
    """
    check_aspect_ratio(height, width)
    # Python's round (half to even), as in the processors.
    rows, columns = round(height / block), round(width / block)
    pixels = round(frames / temporal) * temporal * rows * columns * block * block
    if pixels > max_pixels:
        shrink = math.sqrt((frames * height * width) / max_pixels)
        rows = max(1, math.floor(height / shrink / block))
        columns = max(1, math.floor(width / shrink / block))
    elif pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        rows, columns = math.ceil(height * grow / block), math.ceil(width * grow / block)
    return rows * block, columns * block


def smart_resize_frames(
    frames: int, height: int, width: int, temporal: int, block: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Returns the (height, width) of frames rounded to blocks, with all their pixels together within a range.

    The rule is that of the processors of GLM-4V, and of Qwen3-VL's videos, in transformers.

    Args:
        frames: Frames of the video.
        height: Pixels.
        width: Likewise.
        temporal: Frames of a temporal patch.
        block: Pixels of a block's side.
        min_pixels: Fewest pixels of all frames after resizing.
        max_pixels: Most pixels likewise.

    Raises:
        DecodeError: There are fewer frames than a temporal patch has, or one side is more than 200 times as long as the
            other.
    """
    if frames < temporal:
        raise DecodeError(f"The video has {frames} frames, and the processor refuses fewer than {temporal}")
    if height < block or width < block:
        grow = max(block / height, block / width)
        height, width = int(height * grow), int(width * grow)
    return fit_blocks(frames, temporal, height, width, block, min_pixels, max_pixels)


def check_aspect_ratio(height: int, width: int) -> None:
    """Checks that no side is more than 200 times as long as the other.

    Raises:
        DecodeError: One is.
    """
    if max(height, width) / min(height, width) > _MAX_ASPECT_RATIO:
        raise DecodeError(
            f"{width} x {height} pixels have an aspect ratio above {_MAX_ASPECT_RATIO}, which the processor refuses"
        )
