"""Videos as patches of several frames, in the order in which a model merges them: Qwen-VL and GLM-4V."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from energon_dali.decode.front_ends.cutting import cut_patches
from energon_dali.decode.front_ends.layout import VideoLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD
from energon_dali.decode.front_ends.qwen2_vl import (
    check_patches,
    check_pixels,
    check_whole_blocks,
    take_patches,
    take_pixels,
)
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.front_ends.front_end import VisionInput
    from energon_dali.decode.front_ends.processor_config import ProcessorConfig


@dataclass(frozen=True, kw_only=True)
class PatchedVideo(VideoFrontEnd):
    """Resizes frames to whole merge blocks within a range of pixels, and cuts them into patches of several frames.

    `layout.grid` is (temporal patches, rows, columns). Values: dtype[patches, 3 * temporal_patch_size * patch_size
    ** 2]. The last frame is repeated until the last temporal patch is full.
    """

    min_pixels: int
    """Fewest pixels after resizing: of a frame, or of all frames together, as the family says."""
    max_pixels: int
    """Most pixels likewise."""
    patch_size: int = 14
    """Pixels of a patch's side."""
    temporal_patch_size: int = 2
    """Frames of a patch."""
    merge_size: int = 2
    """Patches per side that the model merges into one token."""
    resizes: bool = True
    """Whether frames are resized; if not, their sides must be multiples of patch_size * merge_size."""

    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos", "video_grid_thw")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patches(self)

    @abstractmethod
    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) of frames after resizing.

        Raises:
            DecodeError: The processor refuses videos of this size.
        """

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        if not self.resizes:
            check_whole_blocks(height, width, self.patch_size * self.merge_size)
        out_height, out_width = self.resized(len(frames), height, width) if self.resizes else (height, width)
        rows, columns = out_height // self.patch_size, out_width // self.patch_size
        groups = -(-len(frames) // self.temporal_patch_size)
        return VideoLayout(
            height,
            width,
            (View(out_height, out_width),),
            groups * rows * columns // self.merge_size**2,
            (groups, rows, columns),
            frames,
            total,
            fps,
        )

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        import torch

        groups, rows, columns = layout.grid
        size, patch = self.temporal_patch_size, self.patch_size
        values = torch.empty(
            (groups, rows * columns, 3, size, patch * patch), dtype=self.torch_dtype, device=frames.device
        )
        for number, frame in enumerate(frames):
            ((_, canvas),) = self.canvases(Pixels(tensor=frame), layout)
            patches = cut_patches(canvas, patch, self.merge_size)  # uint8[rows * columns, 3, patch ** 2]
            group, slot = divmod(number, size)
            self.values.convert(patches, self.torch_dtype, channel_axis=1, out=values[group, :, :, slot])
        filled = (len(frames) - 1) % size + 1
        if filled < size:
            values[-1, :, :, filled:] = values[-1, :, :, filled - 1 : filled]
        return values.view(groups * rows * columns, -1)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        videos = [video for sample in samples for video in sample]
        return {
            "pixel_values_videos": torch.cat([video.values for video in videos]),
            "video_grid_thw": torch.tensor([video.layout.grid for video in videos], dtype=torch.int64),
        }


def take_patch_fields(
    config: ProcessorConfig,
    pixels: tuple[int, int],
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    patch_size: int = 14,
) -> dict[str, Any]:
    """Returns the fields that `PatchedVideo` defines, as a configuration has them.

    Args:
        config: Of the processor.
        pixels: min_pixels and max_pixels, from `take_pixel_range` or `take_shared_pixel_range`.
        mean: Default of image_mean.
        std: Default of image_std.
        patch_size: Default of patch_size.

    Raises:
        ConfigError: A value is not supported.
    """
    return {
        **config.take_conversion(mean, std, "bicubic", rgb=None),
        "min_pixels": pixels[0],
        "max_pixels": pixels[1],
        **take_patches(config, patch_size),
    }


def take_shared_pixel_range(config: ProcessorConfig, default: tuple[int, int]) -> tuple[int, int]:
    """Returns the fewest and the most pixels that all frames of a video have together after resizing.

    Args:
        config: Its size has them as shortest_edge and longest_edge.
        default: What the processor takes if its file does not say.

    Raises:
        ConfigError: One of the two is missing.
    """
    return check_pixels(config, take_pixels(config, default))
