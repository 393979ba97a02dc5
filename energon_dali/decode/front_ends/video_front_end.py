"""The description of what a vision-language model wants of a video: which frames, and what they become."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.processor_family import checked_layouts
from energon_dali.decode.front_ends.resampling import Pixels, Resampling
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch


_FLOAT_BYTES = 256 << 20
"""Most memory of frames as float32 while a GPU resamples them."""


@dataclass(frozen=True, kw_only=True)
class VideoFrontEnd(FrontEnd):
    """What a vision-language model wants of a video, declared as `VideoClips(front_end=...)`.

    It chooses frames by their number, as the processor does, and makes of them what the processor makes. The videos
    become VideoInput, and hooks before decoding see handles with their `num_tokens`.

        front_end = VideoFrontEnd.from_processor(processor, fps=2.0)
        decoder = SampleDecoder(av_decode=VideoClips(front_end=front_end))

    Raises:
        ConfigError: A field has an invalid value.
    """

    resampling: Resampling = "torch"
    """Who resamples. The video processors of transformers use torch."""
    video_token: str = "<video>"
    """Placeholder of a video in the text."""
    video_token_id: int | None = None
    """Id of `video_token` in the tokenizer, by which token counts find it; None if it is not known."""
    num_frames: int | None = None
    """Frames of each video; None takes `fps`."""
    fps: float | None = None
    """Frames per second to take, within limits of the family; None, without `num_frames`, takes all frames."""

    token_ids: ClassVar[tuple[str, ...]] = (*FrontEnd.token_ids, "video_token_id")
    word_digits: ClassVar[int] = 1
    """Most digits of a token of the family's tokenizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_frames is not None and (not isinstance(self.num_frames, int) or self.num_frames < 1):
            raise ConfigError(f"num_frames={self.num_frames!r} is invalid: it must be a whole number of at least 1.")
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps={self.fps!r} is invalid: it must be a number of frames per second above 0.")

    def wanted_frames(self, total_frames: int, fps: float) -> int | None:
        """Returns how many frames `num_frames` or `fps` ask for; None for all.

        Args:
            total_frames: Frames of the video.
            fps: Frames per second of the video, on average.
        """
        if self.num_frames is not None or self.fps is None:
            return self.num_frames
        return int(total_frames / fps * self.fps)

    @abstractmethod
    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        """Returns the numbers of the frames that the processor takes from a video, in presentation order.

        Args:
            total_frames: Frames of the video, at least 1.
            fps: Frames per second of the video, on average.

        Raises:
            DecodeError: The processor refuses videos of this length.
        """

    @abstractmethod
    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        """Returns what chosen frames become.

        Args:
            width: Pixels.
            height: Likewise.
            frames: Numbers of the chosen frames.
            total: Frames of the video.
            fps: Frames per second of the video.

        Raises:
            DecodeError: The processor refuses such videos.
        """

    @abstractmethod
    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        """Returns the values of a video.

        Args:
            frames: uint8[n, 3, H, W], the chosen frames, in any memory order.
            layout: Of the video.
        """

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return tuple(pixels.shape)

    def finish(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor | None = None) -> torch.Tensor:
        return pixels if out is None else out.copy_(pixels)  # `render_frames` converted them

    def video_text(self, layout: VideoLayout) -> str:
        """Returns the text that stands for one video: its placeholder tokens, and what is written between them.

        Args:
            layout: Of the video.
        """
        return self.video_token * layout.num_tokens

    def layout(self, width: int, height: int, frames: int = 1, fps: float = 1.0) -> VideoLayout:
        """Returns what a video becomes.

        Args:
            width: Pixels.
            height: Likewise.
            frames: Frames of the video.
            fps: Frames per second of the video, on average.

        Raises:
            ConfigError: A side is not a whole number of at least 1.
            DecodeError: The processor refuses such videos.
        """
        if frames < 1 or not fps > 0:
            raise DecodeError(f"The video has {frames} frames at {fps:g} frames per second, so none can be chosen")
        chosen = tuple(self.choose_frames(frames, fps))
        if not chosen:
            raise DecodeError(f"The processor takes no frame of this video, which has {frames} at {fps:g} per second")
        return self.frames_layout(width, height, chosen, frames, fps)

    def attention_groups(self, layout: ImageLayout) -> list[tuple[int, int]]:
        """Returns (number of groups, patches of each); by default each tile of each frame is a group."""
        frames = len(layout.frames) if isinstance(layout, VideoLayout) else 1
        return [(frames * count, patches) for count, patches in super().attention_groups(layout)]

    def render_video(self, frames: torch.Tensor, layout: VideoLayout, timestamps: tuple[float, ...] = ()) -> VideoInput:
        """Returns a video as the model takes it.

        Args:
            frames: uint8[n, 3, H, W], the frames that the layout chose, in any memory order.
            layout: Of the video.
            timestamps: When each of the frames is shown, in seconds.
        """
        return VideoInput(self.render_frames(frames, layout), layout, self, timestamps)

    def render(self, pixels: Pixels, layout: ImageLayout) -> VideoInput:
        """Returns an image as a video of one frame."""
        assert isinstance(layout, VideoLayout)
        return self.render_video(pixels.tensor[None], layout)

    def text_tokens(self, layout: ImageLayout) -> int:
        assert isinstance(layout, VideoLayout)
        return self.video_text_tokens(layout)

    def video_text_tokens(self, layout: VideoLayout) -> int:
        """Returns the tokens of `video_text`; words between the frames count as the published models split them.

        Args:
            layout: Of the video.
        """
        return layout.num_tokens + sum(2 + word_tokens(words, self.word_digits) for words in self.words(layout))

    def words(self, layout: VideoLayout) -> list[str]:
        """Returns the text next to each group of features, which is between two markers; none by default.

        Args:
            layout: Of the video.
        """
        return []

    def image_text(self, layout: ImageLayout) -> str:
        """Returns the text that stands for one video."""
        assert isinstance(layout, VideoLayout)
        return self.video_text(layout)

    def expand_text(self, text: str, layouts: Iterable[ImageLayout]) -> str:
        """Returns a text with each video token replaced by the text of its video, as the processor expands it.

        Where a text also has images, expand those first: the text of a video may contain image tokens.

        Args:
            text: With one `video_token` per video.
            layouts: Of the videos (`handle.layout`, or `VideoInput.layout`), in the order of the text.

        Raises:
            ConfigError: The text has more or fewer video tokens than there are videos, or an argument is of another
                type.
        """
        return self._expanded(text, self.video_token, checked_layouts(layouts, VideoLayout), "videos")


def frames_at_once(frames: torch.Tensor, layout: VideoLayout, multiple: int = 1) -> int:
    """Returns how many frames of a video are resampled at a time on a GPU, where they become float32.

    Args:
        frames: uint8[n, 3, H, W].
        layout: Of the video.
        multiple: Frames that belong together.
    """
    height, width = layout.views[0].canvas_size
    of_one = 4 * 3 * max(frames.shape[-2] * frames.shape[-1], height * width)
    return max(1, _FLOAT_BYTES // of_one // multiple) * multiple


def frame_sampling(
    config: ProcessorConfig, *, num_frames: int | None, fps: float | None, samples: bool
) -> dict[str, Any]:
    """Returns the fields num_frames and fps for a processor's configuration.

    Args:
        config: Its do_sample_frames, num_frames and fps are taken.
        num_frames: Default of num_frames.
        fps: Default of fps.
        samples: Default of do_sample_frames. Without sampling, all frames are taken.

    Raises:
        ConfigError: A value is not a number within its range.
    """
    given_frames, given_fps = config.take("num_frames", num_frames), config.take("fps", fps)
    if given_frames is not None:
        given_frames = config.take_integer("num_frames", given_frames)
    if given_fps is not None:
        given_fps = config.take_number("fps", given_fps)
    if not config.take_flag("do_sample_frames", samples):
        return {"num_frames": None, "fps": None}
    return {"num_frames": given_frames, "fps": given_fps}


def word_tokens(text: str, digits: int) -> int:
    """Returns the tokens of a text of common words, numbers and single marks, as byte-level tokenizers split it.

    Args:
        text: Such as "<1.5 seconds>".
        digits: Most digits of a token.
    """
    return len(re.findall(rf" ?[A-Za-z]+|\d{{1,{digits}}}|[^A-Za-z\d]", text))


def take_unused(config: ProcessorConfig, *names: str) -> None:
    """Takes values that do not change what a video becomes: frames are RGB already, and metadata is always known."""
    for name in ("do_convert_rgb", "return_metadata", "video_metadata", "use_token_compression", *names):
        config.take(name)


@dataclass(eq=False, repr=False)
class VideoInput(VisionInput):
    """One video as a model takes it. Its `pixels` are the values."""

    layout: VideoLayout
    """Size and chosen frames of the video, views, grid and number of tokens."""
    front_end: VideoFrontEnd
    """What made it."""
    timestamps: tuple[float, ...] = ()
    """When each chosen frame is shown, in seconds, as the file says."""

    def __repr__(self) -> str:
        return (
            f"VideoInput({self.front_end.family}: {self.layout.width}x{self.layout.height}, "
            f"{len(self.layout.frames)} of {self.layout.total_frames} frames -> "
            f"{list(self.pixels.shape)} {self.front_end.dtype}, {self.num_tokens} tokens)"
        )
