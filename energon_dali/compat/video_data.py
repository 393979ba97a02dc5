"""The decoded video of older versions of Energon."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from energon_dali.av import AVData


@dataclass
class VideoData:
    """A decoded video; versions before 6 delivered it for video parts, later ones deliver AVData or AVDecoder."""

    frames: torch.Tensor
    """uint8 [frames, channels, height, width]."""
    aframes: torch.Tensor | None = None
    """Audio [channels, samples]; None without audio."""
    info: dict[str, Any] = field(default_factory=dict)
    """Facts such as `video_fps` and `audio_fps`."""

    @classmethod
    def from_av_data(cls, data: AVData) -> VideoData:
        """Returns the clips of a decoded file joined: frames one after the other, and the audio likewise.

        Args:
            data: What `av_decode="torch"` or `AVDecoder.get_clips` returns.
        """
        info: dict[str, Any] = {}
        frames = torch.cat(data.video_clips) if data.video_clips else torch.empty((0, 3, 0, 0), dtype=torch.uint8)
        for name, clips, ranges, axis in (
            ("video_fps", data.video_clips, data.video_timestamps, 0),
            ("audio_fps", data.audio_clips, data.audio_timestamps, 1),
        ):
            seconds = sum(end - begin for begin, end in ranges or ())
            if clips and seconds > 0:
                info[name] = sum(clip.shape[axis] for clip in clips) / seconds
        return cls(frames, torch.cat(data.audio_clips, dim=1) if data.audio_clips else None, info)
