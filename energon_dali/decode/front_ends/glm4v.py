"""GLM-4V (GLM-4.1V, GLM-4.5V, GLM-4.6V): patches as Qwen2-VL's, with a range of pixels that counts frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL, fit_blocks
from energon_dali.errors import DecodeError


@dataclass(frozen=True, kw_only=True)
class Glm4V(Qwen2VL):
    """Resizes an image to whole merge blocks and cuts it into patches, as `Qwen2VL` does.

    The range of pixels holds for a whole temporal patch, which a still image fills with copies of itself, and sides
    shorter than a block are enlarged to one first.
    """

    image_token: str = "<|image|>"
    """Stands for an image in the text, and for each of its features after `expand_text`."""

    family: ClassVar[str] = "glm4v"
    processors: ClassVar[tuple[str, ...]] = ("Glm4vImageProcessor", "Glm46VImageProcessor")
    default_pixels: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 15000)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        frames = self.temporal_patch_size
        return smart_resize_frames(
            frames, height, width, frames, self.patch_size * self.merge_size, self.min_pixels, self.max_pixels
        )


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
