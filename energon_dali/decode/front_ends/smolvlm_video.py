"""Videos of SmolVLM: each frame is a square, with its time in the text; a sentence about the video is before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.idefics3 import longest_edge_size
from energon_dali.decode.front_ends.lanczos import resized_by_torch
from energon_dali.decode.front_ends.layout import VideoLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd, take_unused, word_tokens

if TYPE_CHECKING:
    import torch

_SKIPPED_SECONDS = 1
"""Of a long video at its beginning and at its end."""
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True, kw_only=True)
class SmolVLMVideo(VideoFrontEnd):
    """Resizes the longer side of each frame, and the result to a square. Values: dtype[frames, 3, side, side].

    `batch_vision` pads videos with black frames to the most of one, and returns a mask of their pixels.
    """

    side: int = 364
    """Pixels of the square's side ("max_image_size")."""
    longest_edge: int | None = 4 * 364
    """Length of the longer side after the first resampling; None with `size`."""
    size: tuple[int, int] | None = None
    """(height, width) after the first resampling."""
    image_seq_len: int = 64
    """Tokens of a frame."""
    image_token: str = "<image>"
    """Stands for each feature of a frame."""
    fake_image_token: str = "<fake_token_around_image>"
    """Text before and after the tokens of a frame."""
    global_image_token: str = "<global-img>"
    """Text before the tokens of a frame, after the one above."""

    family: ClassVar[str] = "smolvlm_video"
    processors: ClassVar[tuple[str, ...]] = ("SmolVLMVideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD - {"do_pad"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        take_unused(config, "do_image_splitting", "return_row_col_info")
        config.require("do_resize", True, "frames of other sizes are not squares")
        config.require("do_pad", True, "videos of different lengths form no batch without padding")
        given = config.take("video_sampling", {})  # of older files: size wins over the one in it
        if not isinstance(given, Mapping):
            raise config.invalid("video_sampling", given, "an object with fps, max_frames and video_size")
        size = config.take_size("size", given.get("video_size") or {"longest_edge": 4 * 364})
        pair = (size["height"], size["width"]) if {"height", "width"} <= size.keys() else None
        longest = size.get("longest_edge")
        if longest is None and pair is None:
            raise config.error(f"size={size} is neither a longest_edge nor a height and a width")
        tile = config.take_size("max_image_size", {"longest_edge": 364})
        if "longest_edge" not in tile:
            raise config.error(f"max_image_size={tile} has no longest_edge")
        fps, frames = config.take("fps", given.get("fps")), config.take("num_frames", given.get("max_frames"))
        samples = config.take_flag("do_sample_frames", False)
        if samples and (fps is None or frames is None):
            raise config.error("do_sample_frames=True needs fps and num_frames, or those of video_sampling")
        return cls(
            **config.take_conversion(HALF, HALF, "lanczos", rgb=None),
            side=tile["longest_edge"],
            longest_edge=longest,
            size=pair if longest is None else None,
            image_seq_len=config.outer_integer("image_seq_len", 64, least=1),
            **config.take_texts(cls, "video_token", "image_token", "fake_image_token", "global_image_token"),
            num_frames=config.take_integer("num_frames", frames) if samples else None,
            fps=config.take_number("fps", fps) if samples else None,
        )

    def choose_frames(self, total_frames: int, fps: float) -> list[int]:
        if self.num_frames is None or self.fps is None:
            return list(range(total_frames))
        seconds = total_frames / fps
        count = max(1, min(round(self.fps * seconds), self.num_frames))
        first, last = 0, total_frames - 1
        if seconds - 2 * _SKIPPED_SECONDS > self.num_frames * self.fps:
            first = int(_SKIPPED_SECONDS * fps)
            last = min(int(total_frames - _SKIPPED_SECONDS * fps), last)
        if first >= last:
            first, last = 0, total_frames - 1
        return [int(frame) for frame in np.unique(np.linspace(first, last, count, dtype=int))]

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        first = self.size or longest_edge_size(height, width, self.longest_edge or 0)
        views = (View(*first, emitted=False), View(self.side, self.side, source=0))
        return VideoLayout(height, width, views, len(frames) * self.image_seq_len, (len(frames),), frames, total, fps)

    def render_frames(self, frames: torch.Tensor, layout: VideoLayout) -> torch.Tensor:
        import torch

        shape = (len(frames), 3, self.side, self.side)
        values = torch.empty(shape, dtype=self.torch_dtype, device=frames.device)
        for frame, out in zip(frames, values, strict=True):
            pixels = Pixels(tensor=frame)
            for view in layout.views:
                pixels = self._resized(pixels, view)
            self.values.convert(
                pixels.planes()[None].flatten(2), self.torch_dtype, channel_axis=1, out=out[None].flatten(2)
            )
        return values

    def _resized(self, pixels: Pixels, view: View) -> Pixels:
        if self.filter == "lanczos" and self.resampling == "torch":
            return resized_by_torch(pixels, view.height, view.width)
        return pixels.resized(view.height, view.width, self.filter, self.resampling)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        videos = [video for sample in samples for video in sample]
        first = videos[0].pixels
        most = max(video.rows for video in videos)
        values = torch.zeros((len(videos), most, *first.shape[1:]), dtype=self.torch_dtype, device=first.device)
        mask = torch.zeros((len(videos), most, self.side, self.side), dtype=torch.int64, device=first.device)
        for video, row, ones in zip(videos, values, mask, strict=True):
            row[: video.rows] = video.pixels
            ones[:] = 1  # the processor marks the frames that it adds too
        return {"pixel_values": values, "pixel_attention_mask": mask}

    def video_text(self, layout: VideoLayout) -> str:
        intro, *times = self.words(layout)
        tokens = self.image_token * self.image_seq_len
        frame = f"{self.fake_image_token}{self.global_image_token}{tokens}{self.fake_image_token}"
        return intro + "".join(time + frame for time in times) + "\n\n"

    def words(self, layout: VideoLayout) -> list[str]:
        """Returns the sentence about the video, and the time before each frame."""
        length = timedelta(seconds=int(layout.total_frames / layout.fps))
        intro = (
            f"You are provided the following series of {number_in_words(len(layout.frames))} frames from a "
            f"{length} [H:MM:SS] video.\n"
        )
        times = [f"{int(seconds // 60):02d}:{int(seconds % 60):02d}" for seconds in layout.frame_seconds]
        return [intro, *(f"\nFrame from {time}:" for time in times)]

    def video_text_tokens(self, layout: VideoLayout) -> int:
        words = sum(word_tokens(text, self.word_digits) for text in self.words(layout))
        return layout.num_tokens + 3 * len(layout.frames) + words + 1


def number_in_words(number: int) -> str:
    """Returns a number below a million as English words, as num2words writes it.

    Args:
        number: At least 0.
    """
    if number < 20:
        return _UNITS[number]
    if number < 100:
        ones = f"-{_UNITS[number % 10]}" if number % 10 else ""
        return _TENS[number // 10] + ones
    large, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = number % large
    joint = " and " if rest < 100 else ", "
    return f"{number_in_words(number // large)} {name}" + (joint + number_in_words(rest) if rest else "")
