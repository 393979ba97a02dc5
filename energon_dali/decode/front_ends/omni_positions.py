"""Positions of Qwen-Omni: text, images, videos and audio share one clock, and a video may carry its audio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import ConfigError

VIDEO, AUDIO = 2, 3
"""Types of the tokens of videos and of audio."""
Take = Callable[[int, int], tuple[int, int, int, Any]]
"""Returns (frames, rows, columns, seconds of a frame) of the next image or video, for a type and its tokens."""


@dataclass(frozen=True, kw_only=True)
class OmniClock:
    """How a model of Qwen-Omni counts time."""

    audio_token_id: int
    """Id of the tokens of audio."""
    positions_per_second: float
    """Positions of a second of video; a token of audio is one position."""
    is_fractional: bool = False
    """Whether times keep their fractions, as in Qwen3-Omni. If not, as in Qwen2.5-Omni, they are rounded down, and the
    two tokens before a video with audio share a position, and so do the two after it."""

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the positions."""
        return np.float32 if self.is_fractional else np.int64

    def positions(self, types: NDArray[Any], take: Take) -> NDArray[Any]:
        """Returns positions [3, n] of the tokens of one sample.

        The arithmetic is that of `get_rope_index`: piece by piece, in single precision if times have fractions.

        Args:
            types: 0 (text), 1 (image), 2 (video) or 3 (audio) of each token: [n]. A run of videos and audio without
                text between is a video with its audio.
            take: Hands out the grids of images and videos.

        Raises:
            ConfigError: A grid does not fit its tokens, or a medium has no tokens that begin it.
        """
        pieces = list(self._pieces(types, take))
        found = np.concatenate(pieces, axis=1) if pieces else np.zeros((3, 0))
        return found.astype(self.dtype)

    def _pieces(self, types: NDArray[Any], take: Take) -> Iterator[NDArray[Any]]:
        is_medium = np.concatenate([[0], types != 0, [0]]).astype(np.int8)
        edges = np.flatnonzero(np.diff(is_medium)).reshape(-1, 2)
        done, position = 0, self.dtype(0)
        for start, stop in edges.tolist():
            kinds = types[start:stop]
            has_audio = bool((kinds == VIDEO).any() and (kinds == AUDIO).any())
            markers = 2 if has_audio else 1
            text = start - markers - done
            if text < 0:
                raise ConfigError(
                    f"A medium at token {start} has no {markers} tokens of its own that begin it. Qwen-Omni's text has "
                    "vision_bos or audio_bos there, and both before a video with audio."
                )
            yield self._line(text, position)
            position += self.dtype(text)
            together = has_audio and not self.is_fractional
            yield self._markers(markers, position, together)
            position += self.dtype(1 if together else markers)
            medium = self._medium(kinds, position, take)
            yield medium
            position = medium[:, -1].max() + self.dtype(1)  # after its last token, even if its audio ends later
            after = min(markers, len(types) - stop)
            yield self._markers(after, position, together)
            position += self.dtype(min(after, 1) if together else after)
            done = stop + after
        yield self._line(len(types) - done, position)

    def _line(self, count: int, position: Any) -> NDArray[Any]:
        return np.broadcast_to(np.arange(count, dtype=self.dtype) + position, (3, count))

    def _markers(self, count: int, position: Any, together: bool) -> NDArray[Any]:
        return np.full((3, count), position) if together else self._line(count, position)

    def _medium(self, kinds: NDArray[Any], position: Any, take: Take) -> NDArray[Any]:
        is_audio = kinds == AUDIO
        found = np.empty((3, len(kinds)), self.dtype)
        found[:, is_audio] = self._line(int(is_audio.sum()), position)
        others = kinds[~is_audio]
        if len(others):
            found[:, ~is_audio] = self._grid(*take(int(others[0]), len(others)), len(others)) + position
        return found

    def _grid(self, frames: int, height: int, width: int, seconds: Any, tokens: int) -> NDArray[Any]:
        if frames * height * width != tokens:
            raise ConfigError(
                f"An image or video of {frames} x {height} x {width} merged patches has {tokens} tokens in the text. "
                "Expand the text with the same front end."
            )
        rate = np.float32(self.positions_per_second)
        times = (np.arange(frames, dtype=np.float32) * np.float32(seconds) * rate).astype(self.dtype)
        found = np.empty((3, frames, height, width), self.dtype)
        found[0] = times[:, None, None]
        found[1] = np.arange(height)[:, None]
        found[2] = np.arange(width)
        return found.reshape(3, -1)
