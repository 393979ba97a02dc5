"""Spectra of overlapping frames in float64, as transformers' NumPy extractors compute them, for many frames at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from energon_dali.decode.audio_front_ends.mel_bank import Floats, MelBank

WindowName = Literal["hann", "hamming", "povey", "boxcar"]
LogRule = Literal["log", "log10", "dB"]
_FRAMES_AT_ONCE = 128
"""Frames that pass all steps together, so that they stay in the processor's cache."""


@dataclass(frozen=True, kw_only=True)
class FramedSpectrum:
    """How a waveform becomes a mel spectrum: what `transformers.audio_utils.spectrogram` is called with; a value.

    Every step is that function's, on many frames at once, down to the rounding of the transform to complex64. Two
    sums differ in their order (squares of real and imaginary part, and bins of a filter), by 1e-15 of the value, so
    that a float32 result is the same or, where it is next to the middle between two, the neighbouring one.
    """

    frame_length: int
    """Samples of a frame, and of its window."""
    hop_length: int
    """Samples from one frame to the next."""
    fft_length: int
    """Samples of the Fourier transform; frames are followed by zeros."""
    mel: MelBank
    """Filters of its bins."""
    window: WindowName = "hann"
    """Weights of a frame's samples."""
    periodic: bool = True
    """Whether the window is that of one sample more, without the last one."""
    power: Literal[1, 2] = 2
    """1: amplitudes; 2: their squares."""
    center: bool = True
    """Whether half a frame of mirrored samples is put on both sides."""
    preemphasis: float | None = None
    """Share of the sample before that is subtracted, within a frame."""
    remove_dc_offset: bool = False
    """Whether the mean of a frame is subtracted first."""
    mel_floor: float = 1e-10
    """Least value of a mel bin."""
    log: LogRule | None = "log"
    """The logarithm of mel bins, "dB" of powers; None takes none, and keeps float64."""

    def num_frames(self, num_samples: int) -> int:
        """Returns the frames of a waveform; 0 or fewer if it is shorter than one.

        Args:
            num_samples: Of the waveform, without padding.
        """
        if self.center:
            num_samples += self.frame_length // 2 * 2
        return (num_samples - self.frame_length) // self.hop_length + 1

    def transform(self, waveform: NDArray[Any]) -> NDArray[np.complex64]:
        """Returns the spectrum of a waveform without filters, complex64[frames, bins]; see `compute`.

        Args:
            waveform: As in `compute`.
        """
        return self._transform(self._frames(waveform).astype(np.float64))

    def compute(self, waveform: NDArray[Any]) -> NDArray[Any]:
        """Returns the mel spectrum of a waveform.

        Args:
            waveform: floats[samples], at least one frame's and, with `center`, more than half a frame's.

        Returns:
            float32[frames, filters], or float64 if `log` is None. Frames are contiguous, as in transformers, on which
            the rounding of their means depends.
        """
        frames = self._frames(waveform)
        dtype = np.float64 if self.log is None else np.float32
        result = np.empty((self.mel.num_filters, len(frames)), dtype)
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            some = slice(start, start + _FRAMES_AT_ONCE)
            mels = self.mel.apply(self._spectrum(frames[some].astype(np.float64)))
            result[:, some] = self._logarithm(mels).T
        features: NDArray[Any] = result.T
        return features

    def _frames(self, waveform: NDArray[Any]) -> NDArray[Any]:
        """Returns a view of the frames, [frames, frame_length]."""
        if self.center:
            waveform = np.pad(waveform, self.frame_length // 2, mode="reflect")
        return sliding_window_view(waveform, self.frame_length)[:: self.hop_length]

    def _transform(self, frames: Floats) -> NDArray[np.complex64]:
        """Returns the Fourier transform, [frames, bins]; changes `frames`."""
        if self.remove_dc_offset:
            frames -= frames.mean(axis=1, keepdims=True)
        if self.preemphasis is not None:
            frames[:, 1:] -= self.preemphasis * frames[:, :-1]
            frames[:, 0] *= 1 - self.preemphasis
        frames *= window_weights(self.window, self.frame_length, self.periodic)
        return np.fft.rfft(frames, n=self.fft_length).astype(np.complex64)

    def _spectrum(self, frames: Floats) -> Floats:
        """Returns amplitudes or powers, [frames, bins]; changes `frames`."""
        transform = self._transform(frames)
        if self.power == 1:
            return np.abs(transform, dtype=np.float64)
        parts = np.square(transform.view(np.float32), dtype=np.float64)
        return np.asarray(parts[:, 0::2] + parts[:, 1::2])

    def _logarithm(self, mels: Floats) -> Floats:
        np.maximum(mels, self.mel_floor, out=mels)
        if self.log is None:
            return mels
        if self.log == "log":
            return np.log(mels, out=mels)
        np.log10(mels, out=mels)
        if self.log == "dB":
            mels *= 10.0
        return mels


@lru_cache(maxsize=64)
def window_weights(name: WindowName, length: int, periodic: bool = True) -> Floats:
    """Returns the window of `transformers.audio_utils.window_function`: float64[length], shared and read-only.

    Args:
        name: "hann", "hamming", "povey" or "boxcar".
        length: Samples.
        periodic: Whether it is the window of one sample more, without the last one.
    """
    extended = length + periodic
    if name == "hamming":
        window = np.hamming(extended)
    elif name == "boxcar":
        window = np.ones(extended)
    else:
        window = np.hanning(extended)
    if name == "povey":
        window = np.power(window, 0.85)
    window = np.ascontiguousarray(window[:length])
    window.flags.writeable = False
    return window
