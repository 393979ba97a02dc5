"""Relatives of Qwen-VL's videos with another order of patches: Cosmos 3 Edge and Kimi-K2.5."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_patches
from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.frame_video import frames_of_equal_steps
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.decode.front_ends.patch_relatives import KimiK25
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_COUNT, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import take_patches
from energon_dali.decode.front_ends.qwen_video import Qwen3VLVideo
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, frame_sampling, take_unused

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Cosmos3EdgeVideo(Qwen3VLVideo):
    """Videos of Cosmos 3 Edge: Qwen3-VL's with patches of one frame, in which the channel of each pixel is last."""

    family: ClassVar[str] = "cosmos3_edge_video"
    processors: ClassVar[tuple[str, ...]] = ("Cosmos3EdgeVideoProcessor",)
    channels_last: ClassVar[bool] = True
    default_pixels: ClassVar[tuple[int, int]] = (64 * 64, 24 * 1024 * 1024)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("temporal_patch_size", 1, "the processor has patches of one frame alone")
        return super().from_config(config).with_fields(temporal_patch_size=1)

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        patches = super().render_frames(frames, layout)
        return patches.view(len(patches), 3, -1).transpose(1, 2).flatten(1)


@dataclass(frozen=True, kw_only=True)
class KimiK25Video(VideoFrontEnd):
    """Videos of Kimi-K2.5: frames as its images, in chunks that the text separates; each has the tokens of one frame.

    `layout.grid` is (frames, rows, columns) of patches. Values: dtype[patches, 3, patch_size, patch_size].
    """

    image: KimiK25
    """What a frame becomes."""
    chunk_frames: int = 4
    """Frames of a chunk ("temporal_patch_size")."""
    video_token: str = "<|media_pad|>"

    family: ClassVar[str] = "kimi_k25_video"
    processors: ClassVar[tuple[str, ...]] = ("Kimi_K25VideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos", "video_grid_thw")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"max_height": 512, "max_width": 512})
        if size.keys() != {"max_height", "max_width"} or size["max_height"] != size["max_width"]:
            raise config.error(f"size={size} is not a max_height and an equal max_width")
        take_unused(config)
        conversion = config.take_conversion(HALF, HALF, "bicubic", rgb=None)
        patches = take_patches(config, 14, 4)
        image = KimiK25(
            **conversion,
            **{**patches, "temporal_patch_size": 1},
            min_pixels=1,
            max_pixels=LARGEST_COUNT,
            max_patches=config.take_integer("max_patches", 4096, most=LARGEST_COUNT),
            max_side=size["max_height"],
        )
        return cls(
            **conversion,
            image=image,
            chunk_frames=patches["temporal_patch_size"],
            video_token=config.outer_text("video_token", cls.video_token),
            **frame_sampling(config, num_frames=None, fps=2.0, samples=True),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        return frames_of_equal_steps(self.wanted_frames(total_frames, fps), total_frames)

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        one = self.image.layout(width, height)
        chunks = math.ceil(len(frames) / self.chunk_frames)
        grid = (len(frames), *one.grid[1:])
        return VideoLayout(height, width, one.views, chunks * one.num_tokens, grid, frames, total, fps)

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        import torch

        side = self.image.patch_size
        count, rows, columns = layout.grid
        shape = (count, rows * columns, 3, side * side)
        values = torch.empty(shape, dtype=self.torch_dtype, device=frames.device)
        for frame, out in zip(frames, values, strict=True):
            ((_, canvas),) = self.canvases(Pixels(tensor=frame), layout)
            self.values.convert(cut_patches(canvas, side), self.torch_dtype, channel_axis=1, out=out)
        return values.view(-1, 3, side, side)

    def attention_groups(self, layout: VideoLayout) -> list[tuple[int, int]]:  # type: ignore[override]
        """Returns (chunks, patches of each), and the last chunk if it has fewer frames."""
        frames, rows, columns = layout.grid
        whole, rest = divmod(frames, self.chunk_frames)
        groups = [(whole, self.chunk_frames * rows * columns), (1, rest * rows * columns)]
        return [group for group in groups if group[0] and group[1]]

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        grids, counts = [], []
        for video in images:
            frames, rows, columns = video.layout.grid
            starts = range(0, frames, self.chunk_frames)
            grids += [(min(self.chunk_frames, frames - start), rows, columns) for start in starts]
            counts.append(len(starts))
        return {"video_grid_thw": grids, "num_chunks_per_video": counts}

    def words(self, layout: VideoLayout) -> list[str]:
        return [_time_of_day(seconds) for seconds in layout.frame_seconds[:: self.chunk_frames]]

    def video_text(self, layout: VideoLayout) -> str:
        times = self.words(layout)
        tokens = self.video_token * (layout.num_tokens // len(times))
        return "".join(f"{time}<|media_begin|>video<|media_content|>{tokens}<|media_end|>" for time in times)

    def video_text_tokens(self, layout: VideoLayout) -> int:
        return super().video_text_tokens(layout) + 2 * len(self.words(layout))  # "video", and a third marker


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
