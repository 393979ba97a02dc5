"""GLM-4V (GLM-4.1V, GLM-4.5V, GLM-4.6V): patches as Qwen2-VL's, with a range of pixels that counts frames."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD
from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.decode.front_ends.padded_blocks import view_in_blocks, whole_blocks
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL, smart_resize_frames
from energon_dali.decode.front_ends.qwen_video import PatchedVideo, take_patch_fields, take_shared_pixel_range
from energon_dali.decode.front_ends.video_front_end import take_unused
from energon_dali.errors import ConfigError

_FRAMES_PER_TIME = 2
"""The text has the time of every second frame, whatever the temporal patch size."""


@dataclass(frozen=True, kw_only=True)
class Glm4V(Qwen2VL):
    """Resizes an image to whole merge blocks and cuts it into patches, as `Qwen2VL` does.

    The range of pixels holds for a whole temporal patch, which a still image fills with copies of itself, and sides
    shorter than a block are enlarged to one first.
    """

    image_token: str = "<|image|>"
    """Stands for an image in the text, and for each of its features after `expand_text`."""

    family: ClassVar[str] = "glm4v"
    processors: ClassVar[tuple[str, ...]] = ("Glm4vImageProcessor", "Glm46VImageProcessor", "GlmgaImageProcessor")
    default_pixels: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 15000)
    older_names: ClassVar[bool] = False
    unused_keys: ClassVar[frozenset[str]] = Qwen2VL.unused_keys | {"patch_expand_factor", "min_pixels", "max_pixels"}

    def resized(self, height: int, width: int) -> tuple[int, int]:
        frames = self.temporal_patch_size
        return smart_resize_frames(
            frames, height, width, frames, self.patch_size * self.merge_size, self.min_pixels, self.max_pixels
        )


@dataclass(frozen=True, kw_only=True)
class Glm4VVideo(PatchedVideo):
    """Videos of GLM-4.1V and GLM-4.5V: the range of pixels holds for all frames together, and the text has times."""

    video_token: str = "<|video|>"
    """Stands for a video in the text. Its features are image tokens after `expand_text`."""
    image_token: str = "<|image|>"
    """Stands for each feature of a video."""
    begin_of_image_token: str = "<|begin_of_image|>"
    """Written before the tokens of each temporal patch."""
    end_of_image_token: str = "<|end_of_image|>"
    """Written after them, before the time."""
    samples: bool = True
    """Whether frames are chosen as the processor does; if not, all are taken."""
    fps: float | None = 2.0
    """Frames per second to take."""
    max_duration: float = 300
    """Seconds from which on the frames are spread over the video, as many as a video of this length has."""

    family: ClassVar[str] = "glm4v_video"
    processors: ClassVar[tuple[str, ...]] = ("Glm4vVideoProcessor",)
    word_digits: ClassVar[int] = 3
    default_pixels: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 2 * 30000)
    """(min_pixels, max_pixels) of a processor that does not say."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_frames is not None:
            raise ConfigError(
                f"num_frames={self.num_frames} was given, and GLM-4V chooses frames by rate alone. Leave it out."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        pixels = take_shared_pixel_range(config, cls.default_pixels)
        take_unused(config, "max_image_size", "num_frames")
        return cls(
            **take_patch_fields(config, pixels, mean=CLIP_MEAN, std=CLIP_STD),
            **config.take_texts(cls, "video_token", "image_token"),
            samples=config.take_flag("do_sample_frames", True),
            fps=config.take_number("fps", 2.0),
            max_duration=config.take_number("max_duration", 300),
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        if not self.samples or self.fps is None:
            return list(range(total_frames))
        last, duration = total_frames - 1, total_frames / fps
        most = int(self.max_duration * self.fps)
        if duration <= self.max_duration:
            count = max(math.floor(duration * self.fps), 1)
            frames = [min(last, math.ceil(number * fps / self.fps)) for number in range(count)]
        elif most >= total_frames:
            frames = list(range(total_frames))
        else:
            frames = [min(last, math.ceil(second * fps)) for second in np.linspace(0, duration, most)]
        return _even(frames)

    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        block = self.patch_size * self.merge_size
        return smart_resize_frames(
            frames, height, width, self.temporal_patch_size, block, self.min_pixels, self.max_pixels
        )

    def video_text(self, layout: VideoLayout) -> str:
        groups = layout.grid[0]
        tokens = self.begin_of_image_token + self.image_token * (layout.num_tokens // groups) + self.end_of_image_token
        return "".join(tokens + time for time in self.words(layout))

    def words(self, layout: VideoLayout) -> list[str]:
        seconds = layout.frame_seconds[::_FRAMES_PER_TIME]
        return [self.time_text(seconds[min(group, len(seconds) - 1)]) for group in range(layout.grid[0])]

    def time_text(self, seconds: float) -> str:
        """Returns the time of a temporal patch as the text has it."""
        return str(int(seconds))


@dataclass(frozen=True, kw_only=True)
class Glm46VVideo(Glm4VVideo):
    """Videos of GLM-4.6V: the shorter a video, the more frames per second are taken, up to 640."""

    fps: float | None = None
    """Not used: the length of the video decides."""

    family: ClassVar[str] = "glm46v_video"
    processors: ClassVar[tuple[str, ...]] = ("Glm46VVideoProcessor",)
    rates: ClassVar[tuple[tuple[float, float], ...]] = ((30, 3), (300, 1), (math.inf, 0.5))
    """(seconds, temporal patches per second): the first that the video is not longer than."""
    most_seconds: ClassVar[int] = 2400
    """Longer videos get as many frames as one of this length."""
    most_frames: ClassVar[int] = 640
    """Most frames of a video."""

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        made = super().from_config(config)
        return made.with_fields(fps=None)

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        if not self.samples:
            return list(range(total_frames))
        count, step, end = self.plan(total_frames / fps)
        if total_frames < count:
            frames = self.repeated(total_frames, count)
        else:
            frames = _at_ticks(total_frames, fps, step, end)
            if len(frames) < count:
                frames = _spread(frames[0], frames[-1], count) if frames else _spread(0, total_frames - 1, count)
            elif len(frames) > count:
                frames = _spread(0, total_frames - 1, count)
        return _even(frames)

    def plan(self, duration: float) -> tuple[int, float, float]:
        """Returns how many frames are taken, the seconds between two of them, and the second at which they end.

        Args:
            duration: Of the video in seconds.
        """
        seconds = min(duration, self.most_seconds)
        rate = next(rate for limit, rate in self.rates if seconds <= limit)
        count = min(int(seconds * rate * self.temporal_patch_size), self.most_frames)
        return count, 1 / (self.temporal_patch_size * rate), int(duration)

    def repeated(self, total_frames: int, count: int) -> list[int]:
        """Returns the frames of a video that has fewer than are taken.

        Args:
            total_frames: Frames of the video.
            count: Frames to take.
        """
        return _spread(0, total_frames - 1, count)

    def time_text(self, seconds: float) -> str:
        return f"{seconds:.1f} seconds"


@dataclass(frozen=True, kw_only=True)
class GlmgaVideo(Glm46VVideo):
    """Videos of GLM-GA: a number of frames per second, up to a number of frames."""

    max_frames: int = 640
    """Most frames of a video."""

    family: ClassVar[str] = "glmga_video"
    processors: ClassVar[tuple[str, ...]] = ("GlmgaVideoProcessor",)
    default_pixels: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 2 * 55790)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("patch_expand_factor", 1, "blocks would be larger than what is merged")
        most = config.take_integer("max_frames", 640)
        made = super().from_config(config)
        return made.with_fields(max_frames=most, fps=config.take_number("fps", 2.0))

    def plan(self, duration: float) -> tuple[int, float, float]:
        step = 1 / (self.fps or 2.0)
        return min(int(duration * (self.fps or 2.0)), self.max_frames), step, duration - step

    def repeated(self, total_frames: int, count: int) -> list[int]:
        return [math.floor(number * total_frames / count) for number in range(count)]


@dataclass(frozen=True, kw_only=True)
class Glm5NextVideo(Glm46VVideo):
    """Videos of GLM-5: frames keep their size if they may, with black below and to the right up to whole blocks."""

    max_frames: int = 2048
    """Most frames of a video."""
    max_duration: float = 0
    """Seconds from which on no more frames are taken; 0 for no limit."""

    family: ClassVar[str] = "glm5_next_video"
    processors: ClassVar[tuple[str, ...]] = ("Glm5NextVideoProcessor",)
    unused_keys: ClassVar[frozenset[str]] = Glm46VVideo.unused_keys | {"size", "num_frames", "max_image_size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("patch_expand_factor", 1, "blocks would be larger than what is merged")
        take_unused(config)
        fewest, most = (
            config.take_integer(f"{name}_image_tokens", default) for name, default in (("min", 16), ("max", 240000))
        )
        fields = take_patch_fields(config, (fewest, most), mean=CLIP_MEAN, std=CLIP_STD)
        block = fields["temporal_patch_size"] * (fields["patch_size"] * fields["merge_size"]) ** 2
        return cls(
            **{**fields, "min_pixels": fewest * block, "max_pixels": most * block},
            **config.take_texts(cls, "video_token", "image_token"),
            samples=config.take_flag("do_sample_frames", True),
            fps=config.take_number("fps", 2.0),
            max_duration=config.take_number("max_duration", 0, least=0),
            max_frames=config.take_integer("max_frames", 2048),
        )

    def plan(self, duration: float) -> tuple[int, float, float]:
        seconds = min(duration, self.max_duration) if self.max_duration > 0 else duration
        rate = self.fps or 2.0
        return min(int(seconds * rate), self.max_frames), 1 / rate, int(duration)

    def resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        block = self.patch_size * self.merge_size
        return whole_blocks(frames, height, width, self.temporal_patch_size, block, self.min_pixels, self.max_pixels)

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        made = super().frames_layout(width, height, frames, total, fps)
        if not self.resizes:
            return made
        view = view_in_blocks(made.views[0].canvas_size, height, width, len(frames), self.min_pixels)
        return replace(made, views=(view,))


def _at_ticks(total_frames: int, fps: float, step: float, end: float) -> list[int]:
    """Returns the first frame at or after each tick, until a tick reaches the end."""
    second, frames, frame_seconds = 0.0, [], 1 / fps
    for frame in range(total_frames):
        if frame * frame_seconds >= second:
            second += step
            frames.append(frame)
            if second >= end:
                break
    return frames


def _spread(first: int, last: int, count: int) -> list[int]:
    return [int(frame) for frame in np.linspace(first, last, count, dtype=int)]


def _even(frames: list[int]) -> list[int]:
    """Returns frames without repetitions, the last one twice if their number is odd."""
    unique = list(dict.fromkeys(frames))
    return unique + unique[-1:] if len(unique) % 2 else unique
