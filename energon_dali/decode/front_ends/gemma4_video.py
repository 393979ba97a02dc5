"""Videos of Gemma 4: a number of frames, each as the patches of an image, with its time in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_pixel_patches
from energon_dali.decode.front_ends.frame_video import frames_of_equal_steps
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.gemma4 import Gemma4, take_soft_tokens
from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, frame_sampling, take_unused

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Gemma4Video(VideoFrontEnd):
    """Takes frames at equal steps. `layout.grid` is (frames, rows, columns) of patches.

    Values: dtype[frames, patches, patch_size * patch_size * 3], with zeros up to the most patches of a frame.
    """

    image: Gemma4
    """What a frame becomes."""
    video_token: str = "<|video|>"
    """Stands for a video in the text, and for each of its features after `expand_text`."""

    family: ClassVar[str] = "gemma4_video"
    processors: ClassVar[tuple[str, ...]] = ("Gemma4VideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}
    channels_last: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        take_unused(config)
        conversion = config.take_conversion((0.0,) * 3, (1.0,) * 3, "bicubic", rgb=None)
        return cls(
            **conversion,
            image=Gemma4(
                **conversion,
                **take_soft_tokens(config, 70),
                start_token=config.outer_text("boi_token", Gemma4.start_token),
                end_token=config.outer_text("eoi_token", Gemma4.end_token),
            ),
            video_token=config.outer_text("video_token", cls.video_token),
            **frame_sampling(config, num_frames=32, fps=None, samples=True),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        return frames_of_equal_steps(self.wanted_frames(total_frames, fps), total_frames)

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        one = self.image.layout(width, height)
        grid = (len(frames), *one.grid)
        return VideoLayout(height, width, one.views, len(frames) * one.num_tokens, grid, frames, total, fps)

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        import torch

        count, rows, columns = layout.grid
        side, most = self.image.patch_size, self.image.max_patches
        values = torch.zeros((count, most, 3 * side**2), dtype=self.torch_dtype, device=frames.device)
        view = layout.views[0]
        for frame, out in zip(frames, values, strict=True):
            pixels = Pixels(tensor=frame).resized(view.height, view.width, self.filter, self.resampling).tensor
            patches = cut_pixel_patches(pixels, side)
            inside = out[: rows * columns].view(patches.shape)
            self.values.convert(patches, self.torch_dtype, channel_axis=2, out=inside)
        return values

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        videos = [video for sample in samples for video in sample]
        positions = [
            self.image.positions(*video.layout.grid[1:]).expand(video.layout.grid[0], -1, -1) for video in videos
        ]
        frames = [video.layout.grid[0] for video in videos]
        tokens = [video.num_tokens // video.layout.grid[0] for video in videos]
        return {
            "pixel_values_videos": self.concatenated(videos),
            "video_position_ids": torch.cat(positions),
            "num_frames_per_video": torch.tensor(frames),
            "num_soft_tokens_per_video": torch.tensor(tokens),
        }

    def words(self, layout: VideoLayout) -> list[str]:
        return [
            f"{' ' if number else ''}{int(seconds // 60):02d}:{int(seconds % 60):02d} "
            for number, seconds in enumerate(layout.frame_seconds)
        ]

    def video_text(self, layout: VideoLayout) -> str:
        tokens = self.video_token * (layout.num_tokens // layout.grid[0])
        return "".join(f"{time}{self.image.start_token}{tokens}{self.image.end_token}" for time in self.words(layout))
