"""Videos as frames of one size: LLaVA-OneVision and InternVL."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import VideoLayout, View
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.qwen_video import frames_at_steps
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.value_memory import empty_values
from energon_dali.decode.front_ends.video_front_end import (
    VideoFrontEnd,
    frame_sampling,
    frames_at_once,
    take_unused,
)
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class FrameVideo(VideoFrontEnd):
    """Resizes each frame to one size. Values: dtype[frames, 3, height, width]."""

    size: tuple[int, int] | None = None
    """(height, width) of the resized frames; None does not resize."""

    unused_keys: ClassVar[frozenset[str]] = frozenset({"crop_size", "do_pad", "pad_size"})

    @staticmethod
    def take_size(config: ProcessorConfig) -> tuple[int, int] | None:
        """Returns the (height, width) of a processor's configuration; None if it does not resize.

        Raises:
            ConfigError: It is something else, or frames are cropped.
        """
        config.require("do_center_crop", False, "frames of videos are not cropped")
        return config.take_pair(384)

    @abstractmethod
    def tokens(self, frames: int) -> int:
        """Returns the number of tokens of a video with this many chosen frames."""

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        out_height, out_width = self.size or (height, width)
        view = View(out_height, out_width)
        return VideoLayout(height, width, (view,), self.tokens(len(frames)), (len(frames),), frames, total, fps)

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:

        height, width = layout.views[0].canvas_size
        values = empty_values((len(frames), 3, height, width), self.torch_dtype, frames.device)
        if frames.is_cuda:
            count = frames_at_once(frames, layout)
            parts = frames.split(count), values.split(count)  # type: ignore[no-untyped-call]
            for part, out in zip(*parts, strict=True):
                ((_, canvases),) = self.canvases(Pixels(tensor=part), layout)
                self.values.convert(canvases.flatten(2), self.torch_dtype, channel_axis=1, out=out.flatten(2))
            return values
        for number, frame in enumerate(frames):
            ((_, canvas),) = self.canvases(Pixels(tensor=frame), layout)
            self.values.convert(
                canvas[None].flatten(2), self.torch_dtype, channel_axis=1, out=values[number, None].flatten(2)
            )
        return values


@dataclass(frozen=True, kw_only=True)
class StackedVideo(FrameVideo):
    """Takes frames at equal steps, and stacks videos of one length and size."""

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        return frames_of_equal_steps(self.wanted_frames(total_frames, fps), total_frames)

    def concatenated(self, images: Sequence[VisionInput]) -> torch.Tensor:
        """Returns dtype[videos, frames, 3, height, width]."""
        import torch

        shapes = sorted({tuple(video.pixels.shape) for video in images})
        if len(shapes) > 1:
            raise ConfigError(
                f"Videos of the shapes {shapes} cannot be stacked, as the model wants them. Give the front end "
                "num_frames, so that all videos have as many frames."
            )
        return torch.stack([video.values for video in images])


@dataclass(frozen=True, kw_only=True)
class LlavaOnevisionVideo(StackedVideo):
    """Videos of LLaVA-OneVision: the model pools the features of each frame 2 x 2 and adds one token for a newline."""

    num_image_tokens: int = 729
    """Features of a frame before pooling, as the processor's num_image_tokens."""

    family: ClassVar[str] = "llava_onevision_video"
    processors: ClassVar[tuple[str, ...]] = ("LlavaOnevisionVideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        take_unused(config)
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic", rgb=None),
            size=cls.take_size(config),
            video_token=config.outer_text("video_token", cls.video_token),
            num_image_tokens=config.outer_integer("num_image_tokens", cls.num_image_tokens, least=1),
            **frame_sampling(config, num_frames=None, fps=None, samples=False),
        )

    def tokens(self, frames: int) -> int:
        side = math.ceil(int(math.sqrt(self.num_image_tokens)) / 2)
        return frames * side * side + 1


@dataclass(frozen=True, kw_only=True)
class InternVLVideo(FrameVideo):
    """Videos of InternVL: each frame is one tile, and the text numbers the frames.

    The model takes frames and the tiles of images as one list, in the order of the text: give `batch_vision` both.
    """

    tile_tokens: int = 256
    """Tokens of a frame ("image_seq_length")."""
    image_token: str = "<IMG_CONTEXT>"
    """Stands for each feature of a frame in the text."""
    start_image_token: str = "<img>"
    """Written before the tokens of each frame."""
    end_image_token: str = "</img>"
    """Written after them."""
    initial_shift: bool | float = True
    """Where sampling starts, in frames; True is half a step, so that frames are from the middle of their steps."""

    unused_keys: ClassVar[frozenset[str]] = FrameVideo.unused_keys | {"crop_to_patches", "max_patches", "min_patches"}
    family: ClassVar[str] = "internvl_video"
    processors: ClassVar[tuple[str, ...]] = ("InternVLVideoProcessor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        take_unused(config)
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic", rgb=None),
            size=cls.take_size(config),
            **config.take_texts(cls, "video_token", "image_token", "start_image_token", "end_image_token"),
            tile_tokens=config.outer_integer("image_seq_length", cls.tile_tokens, least=1),
            initial_shift=_initial_shift(config),
            **frame_sampling(config, num_frames=None, fps=None, samples=False),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        count = self.wanted_frames(total_frames, fps)
        if count is None:
            return list(range(total_frames))
        shift = total_frames / max(count, 1) / 2 if self.initial_shift is True else float(self.initial_shift)
        return frames_at_steps(shift, total_frames, count)

    def tokens(self, frames: int) -> int:
        return frames * self.tile_tokens

    def video_text(self, layout: VideoLayout) -> str:
        frame = self.start_image_token + self.image_token * self.tile_tokens + self.end_image_token
        return "".join(f"{words}{frame}" for words in self.words(layout))

    def words(self, layout: VideoLayout) -> list[str]:
        return [f"{chr(10) if number else ''}Frame{number + 1}: " for number in range(len(layout.frames))]


def frames_of_equal_steps(count: int | None, total_frames: int) -> list[int]:
    """Returns frame numbers at equal steps from the first one, as most video processors choose them.

    Args:
        count: Frames to take; None takes all.
        total_frames: Frames of the video.

    Raises:
        DecodeError: The video has fewer.
    """
    if count is None:
        return list(range(total_frames))
    count = max(1, count)
    if count > total_frames:
        raise DecodeError(f"The processor takes {count} frames of this video, which has {total_frames}")
    return [number * total_frames // count for number in range(count)]


def _initial_shift(config: ProcessorConfig) -> bool | float:
    given = config.take("initial_shift", True)
    return given if isinstance(given, bool) else config.take_number("initial_shift", given, least=0)
