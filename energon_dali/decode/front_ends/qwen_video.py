"""Videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of several frames, in the order in which a model merges them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_patches
from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD, HALF
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import (
    check_patches,
    check_pixels,
    check_whole_blocks,
    smart_resize,
    smart_resize_frames,
    take_patches,
    take_pixel_range,
    take_pixels,
)
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.value_memory import empty_values
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, frame_sampling, frames_at_once, take_unused
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch


_SHARE_OF_BUDGET = 0.9
_ABOVE_FEWEST = 1.05


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

    def attention_groups(self, layout: ImageLayout) -> list[tuple[int, int]]:
        """Returns (temporal patches, patches of each): frames of different temporal patches do not attend."""
        groups, rows, columns = layout.grid
        return [(groups, rows * columns)]

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:

        groups, rows, columns = layout.grid
        size, patch = self.temporal_patch_size, self.patch_size
        if frames.is_cuda:
            return self._render_on_gpu(frames, layout)
        values = empty_values((groups, rows * columns, 3, size, patch * patch), self.torch_dtype, frames.device)
        for number, frame in enumerate(frames):
            ((_, canvas),) = self.canvases(Pixels(tensor=frame), layout)
            patches = cut_patches(canvas, patch, self.merge_size)  # uint8[rows * columns, 3, patch ** 2]
            group, slot = divmod(number, size)
            self.values.convert(patches, self.torch_dtype, channel_axis=1, out=values[group, :, :, slot])
        filled = (len(frames) - 1) % size + 1
        if filled < size:
            values[-1, :, :, filled:] = values[-1, :, :, filled - 1 : filled]
        return values.view(groups * rows * columns, -1)

    def _render_on_gpu(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        """Returns the same of frames on a GPU: many are resampled at once, and one kernel does the rest."""
        import torch

        from energon_dali.kernels.merge_patches import merge_patches

        groups, rows, columns = layout.grid
        size, dtype = self.temporal_patch_size, self.torch_dtype
        length = 3 * size * self.patch_size**2
        values = torch.empty((groups, rows * columns, length), dtype=dtype, device=frames.device)
        table = None if dtype == torch.uint8 else self.values.table_on(frames.device, dtype)
        start = 0
        for part in frames.split(frames_at_once(frames, layout, size)):  # type: ignore[no-untyped-call]
            ((_, canvases),) = self.canvases(Pixels(tensor=part), layout)
            stop = start + -(-len(part) // size)
            merge_patches(
                canvases[None],
                (self.patch_size, self.patch_size),
                merge_size=self.merge_size,
                frames_per_patch=size,
                values=table,
                out=values[start:stop],
            )
            start = stop
        return values.view(groups * rows * columns, length)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"video_grid_thw": [video.layout.grid for video in images]}


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


@dataclass(frozen=True, kw_only=True)
class Qwen2VLVideo(PatchedVideo):
    """Videos of Qwen2-VL and Qwen2.5-VL: the range of pixels holds for each frame."""

    video_token: str = "<|video_pad|>"
    """Stands for a video in the text, and for each of its features after `expand_text`."""
    min_frames: int = 4
    """Fewest frames that `fps` leads to, if the video has as many."""
    max_frames: int = 768
    """Most frames that `fps` leads to."""
    cap_pixels_per_frame: bool = False
    """Whether a frame is also limited to its share of the pixels of `max_video_tokens` tokens."""
    max_video_tokens: int = 128000
    """Tokens of a video for `cap_pixels_per_frame`."""
    gives_seconds: bool = True
    """Whether `batch_vision` returns second_per_grid_ts, which Qwen2.5-VL takes and Qwen2-VL does not."""

    family: ClassVar[str] = "qwen2_vl_video"
    processors: ClassVar[tuple[str, ...]] = ("Qwen2VLVideoProcessor", "Qwen2_5_VLVideoProcessor")
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        pixels = take_pixel_range(config, (128 * 28 * 28, 28 * 28 * 768))
        take_unused(config)
        return cls(
            **take_patch_fields(config, pixels, mean=CLIP_MEAN, std=CLIP_STD),
            video_token=config.outer_text("video_token", cls.video_token),
            **_take_limits(config, 128000),
            gives_seconds=config.outer.get("processor_class") != "Qwen2VLProcessor",
            **frame_sampling(config, num_frames=None, fps=None, samples=False),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        size = self.temporal_patch_size
        if self.num_frames is not None:
            count = round(self.num_frames / size) * size
        elif self.fps is not None:
            most = math.floor(min(self.max_frames, total_frames) / size) * size
            wanted = min(max(total_frames / fps * self.fps, self.min_frames), most, total_frames)
            count = math.floor(wanted / size) * size
        else:
            return list(range(total_frames))
        return frames_at_steps(0.0, total_frames, count)

    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        block, most = self.patch_size * self.merge_size, self.max_pixels
        if self.cap_pixels_per_frame:
            budget = int(self.max_video_tokens * block * block * _SHARE_OF_BUDGET)
            share = budget * self.temporal_patch_size // frames
            most = max(min(most, share), int(self.min_pixels * _ABOVE_FEWEST))
        return smart_resize(height, width, block, self.min_pixels, most)

    def seconds_per_grid(self, layout: VideoLayout) -> float:
        """Returns the seconds that a temporal patch spans.

        Args:
            layout: Of the video.
        """
        return self.temporal_patch_size / layout.sampled_fps

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        made = super().collate(samples)
        if self.gives_seconds:
            import torch

            layouts = [video.layout for sample in samples for video in sample]
            seconds = [self.seconds_per_grid(layout) for layout in layouts if isinstance(layout, VideoLayout)]
            made["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float32)
        return made


@dataclass(frozen=True, kw_only=True)
class Qwen3VLVideo(PatchedVideo):
    """Videos of Qwen3-VL: the range of pixels holds for all frames together, and the text has times."""

    video_token: str = "<|video_pad|>"
    """Stands for a video in the text, and for each of its features after `expand_text`."""
    vision_start_token: str = "<|vision_start|>"
    """Written before the tokens of each temporal patch."""
    vision_end_token: str = "<|vision_end|>"
    """Written after them."""
    min_frames: int = 4
    """Fewest frames that `fps` leads to, if the video has as many."""
    max_frames: int = 768
    """Most frames that `fps` leads to."""
    cap_pixels_per_frame: bool = False
    """Whether a frame is also limited to `max_video_tokens` tokens, and to its share of `max_pixels`."""
    max_video_tokens: int = 768
    """Tokens of a frame for `cap_pixels_per_frame`."""

    family: ClassVar[str] = "qwen3_vl_video"
    processors: ClassVar[tuple[str, ...]] = ("Qwen3VLVideoProcessor", "CohereCompassVideoProcessor")
    default_pixels: ClassVar[tuple[int, int]] = (128 * 32 * 32, 32 * 32 * 768)
    """(min_pixels, max_pixels) of a processor that does not say."""

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        pixels = take_shared_pixel_range(config, cls.default_pixels)
        take_unused(config, "max_image_size", "max_duration")
        return cls(
            **take_patch_fields(config, pixels, mean=HALF, std=HALF, patch_size=16),
            **config.take_texts(cls, "video_token", "vision_start_token", "vision_end_token"),
            **_take_limits(config, 768),
            **frame_sampling(config, num_frames=None, fps=2.0, samples=True),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        count = self.wanted_frames(total_frames, fps)
        if count is None:
            return list(range(total_frames))
        if self.num_frames is None:
            count = min(max(count, self.min_frames), self.max_frames, total_frames)
        return [int(frame) for frame in np.linspace(0, total_frames - 1, count).round()]

    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        block, most = self.patch_size * self.merge_size, self.max_pixels
        if self.cap_pixels_per_frame:
            share = min(self.max_video_tokens * block * block, most // frames)
            most = max(share, int(self.min_pixels * _ABOVE_FEWEST)) * frames
        return smart_resize_frames(frames, height, width, self.temporal_patch_size, block, self.min_pixels, most)

    def video_text(self, layout: VideoLayout) -> str:
        tokens = self.video_token * (layout.num_tokens // layout.grid[0])
        return "".join(f"{time}{self.vision_start_token}{tokens}{self.vision_end_token}" for time in self.words(layout))

    def words(self, layout: VideoLayout) -> list[str]:
        size, seconds = self.temporal_patch_size, layout.frame_seconds
        times = []
        for first in range(0, layout.grid[0] * size, size):
            last = min(first + size, len(seconds)) - 1
            times.append(f"<{(seconds[first] + seconds[last]) / 2:.1f} seconds>")
        return times


def _take_limits(config: ProcessorConfig, max_video_tokens: int) -> dict[str, Any]:
    return {
        "min_frames": config.take_integer("min_frames", 4),
        "max_frames": config.take_integer("max_frames", 768),
        "cap_pixels_per_frame": config.take_flag("cap_pixels_per_frame", False),
        "max_video_tokens": config.take_integer("max_video_tokens", max_video_tokens),
    }


def frames_at_steps(start: float, total_frames: int, count: int) -> list[int]:
    """Returns frame numbers at equal steps, as torch.arange computes them in single precision.

    Rounding gives one number more for some lengths (34 frames, of which 14 are taken). Where that is past the last
    frame, the processor fails; here it is left out.

    Args:
        start: The first one, before rounding down.
        total_frames: Frames of the video; all numbers are below.
        count: Frames to choose.

    Raises:
        DecodeError: There are fewer frames, or none is to be chosen.
    """
    if not 0 < count <= total_frames:
        raise DecodeError(f"The processor takes {count} frames of this video, which has {total_frames}")
    import torch

    frames: list[int] = torch.arange(start, total_frames, total_frames / count).int().tolist()
    return [frame for frame in frames if frame < total_frames]
