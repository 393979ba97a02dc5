"""What AVDecoder gives: clips of video and audio with their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.samples.base import edataclass

if TYPE_CHECKING:
    import torch


@edataclass
class AVData:
    """Clips of one file, in the order in which they were asked for; lists are empty where nothing was."""

    video_clips: list[torch.Tensor]
    """Frames of each clip, uint8 (frames, 3, H, W) in RGB."""
    video_timestamps: list[tuple[float, float]]
    """When the first frame of each clip starts and the last one ends, in seconds."""
    audio_clips: list[torch.Tensor]
    """Sound of each clip, (channels, samples) in the codec's sample type."""
    audio_timestamps: list[tuple[float, float]]
    """When the first sample of each clip starts and the last one ends, in seconds."""

    @property
    def video_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each clip of the video: (frames, 3, H, W)."""
        shapes: list[tuple[int, ...]] = _shapes(self.video_clips)
        return shapes

    @property
    def audio_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each clip of the audio: (channels, samples)."""
        shapes: list[tuple[int, ...]] = _shapes(self.audio_clips)
        return shapes

    def __repr__(self) -> str:
        return (
            f"AVData(video={self.video_shapes} at {self.video_timestamps} s, "
            f"audio={self.audio_shapes} at {self.audio_timestamps} s)"
        )


def _shapes(clips: Any) -> Any:
    """Returns the shape of each clip, in the lists that the clips are in: a batch has a list for each sample."""
    return [_shapes(clip) if isinstance(clip, list) else tuple(clip.shape) for clip in clips]
