"""The text of a video together with its audio, as Qwen-Omni writes it: both in the order of their times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AudioInVideo:
    """How the processor of a model puts the tokens of a video and of its audio in one row."""

    start_token: str
    """Written before them."""
    end_token: str
    """Written after them."""
    positions_per_second: float
    """Positions of a second of video; a token of audio is one position."""
    chunk: int | None
    """Positions of a chunk: the video of each, then its audio (Qwen2.5-Omni). None orders them token by token."""
    frames_per_second: float
    """Frames per second that the processor assumes if none are asked for."""

    def text(
        self, video_token: str, layout: VideoLayout, seconds_per_grid: float, audio_token: str, audio_tokens: int
    ) -> str:
        """Returns the text of a video and its audio.

        Args:
            video_token: Placeholder of a feature of the video.
            layout: Of the video.
            seconds_per_grid: Seconds of a temporal patch.
            audio_token: Placeholder of a feature of the audio.
            audio_tokens: Features of the audio.
        """
        frames = layout.grid[0]
        per_frame = layout.num_tokens // frames
        times = np.arange(frames) * seconds_per_grid * self.positions_per_second
        pieces = [self.start_token]
        heard = 0
        if self.chunk is None:
            # A frame is written before the first token of audio that is not earlier.
            for ready in np.ceil(times).astype(np.int64).tolist():
                until = min(max(ready, heard), audio_tokens)
                pieces += [audio_token * (until - heard), video_token * per_frame]
                heard = until
        else:
            for shown in self._chunks(times.tolist(), per_frame):
                until = min(heard + self.chunk, audio_tokens)
                pieces += [video_token * shown, audio_token * (until - heard)]
                heard = until
        return "".join([*pieces, audio_token * (audio_tokens - heard), self.end_token])

    def _chunks(self, times: list[float], per_frame: int) -> list[int]:
        """Returns the tokens of video of each chunk.

        As in the processor, each token begins at most one chunk. So a frame after a long pause has some with one token.
        """
        assert self.chunk is not None
        counts = [0]
        for time in times:
            left = per_frame
            while left and time >= len(counts) * self.chunk:
                counts.append(1)
                left -= 1
            counts[-1] += left
        return counts


def audio_in_video_of(processor: object) -> AudioInVideo | None:
    """Returns how a processor of transformers interleaves videos and their audio; None if it does not.

    Args:
        processor: A processor.

    Raises:
        ConfigError: The processor does not say how long its chunks are, as in old versions of transformers.
    """
    name = type(processor).__name__
    if name not in _FRAMES_PER_SECOND:
        return None
    try:
        rate: float = processor.position_id_per_seconds  # type: ignore[attr-defined]
        seconds: float = processor.seconds_per_chunk  # type: ignore[attr-defined]
    except AttributeError as error:
        raise ConfigError(f"{name} has no {error.name}. Install a newer version of transformers.") from error
    return AudioInVideo(
        start_token=processor.audio_bos_token,  # type: ignore[attr-defined]
        end_token=processor.audio_eos_token,  # type: ignore[attr-defined]
        positions_per_second=rate,
        chunk=int(rate * seconds) if name == "Qwen2_5OmniProcessor" else None,
        frames_per_second=_FRAMES_PER_SECOND[name],
    )


_FRAMES_PER_SECOND = {"Qwen2_5OmniProcessor": 2.0, "Qwen3OmniMoeProcessor": 1.0}
"""By processor, the frames per second that it assumes if it was given none."""
