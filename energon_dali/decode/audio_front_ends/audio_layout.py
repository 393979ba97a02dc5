"""What an audio front end makes of a recording of a given length, as integers: known before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AudioLayout:
    """The length of one recording, and what follows from it."""

    num_samples: int
    """Samples of the recording in each channel, at the front end's sampling rate."""
    kept_samples: int
    """Those that the extractor uses: it cuts off the end of a recording that is too long."""
    num_frames: int
    """Frames of features (or samples, for models that take these) that stand for the recording, without padding."""
    num_tokens: int
    """Tokens of the recording in the text, as the processor counts them: its features, and `num_markers`. For models
    without audio in their text, the positions of their encoder where the extractor decides these, else 0."""
    num_chunks: int = 1
    """Rows of a batch that the recording takes: more than 1 for models that split long recordings."""
    num_markers: int = field(default=0, kw_only=True)
    """Those of `num_tokens` that are not features: tokens before and after them."""

    @property
    def num_features(self) -> int:
        """Placeholder tokens in the text after `expand_text`, one for each feature of the recording."""
        return self.num_tokens - self.num_markers
