"""Mathematics that extractors of audio features share: mel filters, windows, spectra, padding."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

MelScale = Literal["slaney", "htk", "kaldi"]

LOG10_FLOOR = -10.0
"""Logarithm of the smallest power in log-mel features of Whisper and its relatives: 1e-10."""

_LINEAR_TO_HZ = 1000.0
_LINEAR_TO_MEL = 15.0


@lru_cache(maxsize=32)
def mel_filters(
    num_frequencies: int,
    num_mels: int,
    sampling_rate: int,
    *,
    low_hz: float = 0.0,
    high_hz: float,
    scale: MelScale = "slaney",
    area: bool = True,
    in_mels: bool = False,
    dtype: str = "float64",
) -> NDArray[Any]:
    """Returns the weights of the frequencies in each band: dtype[num_frequencies, num_mels], which must not be changed.

    They are those of transformers' `mel_filter_bank`, bit for bit; with the defaults also librosa's.

    Args:
        num_frequencies: Frequencies of the spectrum, from 0 to half the sampling rate: n_fft // 2 + 1.
        num_mels: Bands.
        sampling_rate: Samples per second.
        low_hz: Lowest frequency of the first band.
        high_hz: Highest frequency of the last band.
        scale: On which the bands are at equal distances.
        area: Divides each band by its width ("slaney" normalisation).
        in_mels: Whether the triangles have straight sides on the mel scale, as in Kaldi, or in Hz.
        dtype: To which the triangles are rounded before they are divided.
    """
    mels = np.linspace(_to_mels(low_hz, scale), _to_mels(high_hz, scale), num_mels + 2)
    edges = mels if in_mels else _to_hertz(mels, scale)  # of the triangles
    if in_mels:
        step = sampling_rate / ((num_frequencies - 1) * 2)
        frequencies = _to_mels(step * np.arange(num_frequencies), scale)
    else:
        frequencies = np.linspace(0, sampling_rate // 2, num_frequencies)
    distance = edges[None] - frequencies[:, None]  # float64[frequencies, bands + 2]
    widths = np.diff(edges)
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    filters: NDArray[Any] = np.maximum(0.0, np.minimum(rising, falling)).astype(dtype, copy=False)
    if area:
        filters *= (2.0 / (edges[2:] - edges[:-2]))[None]
    filters.flags.writeable = False
    return filters


def _to_mels(hertz: Any, scale: MelScale) -> Any:
    """Returns frequencies, a number or an array, on a mel scale."""
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hertz / 700.0)
    if scale == "kaldi":
        return 1127.0 * np.log(1.0 + hertz / 700.0)
    step = 27.0 / np.log(6.4)
    above = _LINEAR_TO_MEL + np.log(np.maximum(hertz, _LINEAR_TO_HZ) / _LINEAR_TO_HZ) * step
    return np.where(np.asarray(hertz) >= _LINEAR_TO_HZ, above, 3.0 * hertz / 200.0)


def _to_hertz(mels: NDArray[np.float64], scale: MelScale) -> NDArray[np.float64]:
    if scale == "htk":
        return np.asarray(700.0 * (np.power(10, mels / 2595.0) - 1.0))
    if scale == "kaldi":
        return np.asarray(700.0 * (np.exp(mels / 1127.0) - 1.0))
    step = np.log(6.4) / 27.0
    above = _LINEAR_TO_HZ * np.exp(step * (mels - _LINEAR_TO_MEL))
    return np.where(mels >= _LINEAR_TO_MEL, above, 200.0 * mels / 3.0)


@lru_cache(maxsize=32)
def mel_tensor(num_frequencies: int, num_mels: int, sampling_rate: int, **options: Any) -> torch.Tensor:
    """Returns `mel_filters` as float32[num_frequencies, num_mels], which must not be changed."""
    import torch

    return torch.from_numpy(mel_filters(num_frequencies, num_mels, sampling_rate, **options).astype(np.float32))


@lru_cache(maxsize=32)
def hann_window(length: int, *, periodic: bool = True) -> torch.Tensor:
    """Returns a Hann window, float32[length], which must not be changed."""
    import torch

    return torch.hann_window(length, periodic=periodic)


def power_spectra(samples: torch.Tensor, n_fft: int, hop_length: int, *, contiguous: bool = True) -> torch.Tensor:
    """Returns the power spectra of Hann windows, centred on every hop, of samples that are mirrored at both ends.

    Args:
        samples: float32[recordings, n], with n above n_fft // 2.
        n_fft: Samples of a window.
        hop_length: Samples from one window to the next.
        contiguous: Whether the result is. Matrix products of the two forms differ in their last bits.

    Returns:
        float32[recordings, n_fft // 2 + 1, n // hop_length]: without the last frame, as Whisper.
    """
    import torch

    window = hann_window(n_fft).to(samples.device)
    spectra = torch.stft(samples, n_fft, hop_length, window=window, return_complex=True)
    power = spectra[..., :-1].abs() ** 2
    return power.contiguous() if contiguous else power


def power_of_windows(samples: torch.Tensor, n_fft: int, hop_length: int) -> torch.Tensor:
    """Returns the power spectra of Hann windows of samples that are not padded, from the first sample on.

    Args:
        samples: float32[recordings, n], with n at least n_fft.
        n_fft: Samples of a window.
        hop_length: Samples from one window to the next.

    Returns:
        float32[recordings, n_fft // 2 + 1, (n - n_fft) // hop_length + 1], contiguous.
    """
    import torch

    window = hann_window(n_fft).to(samples.device)
    spectra = torch.stft(samples, n_fft, hop_length, window=window, center=False, return_complex=True)
    return (spectra.abs() ** 2).contiguous()


def log10_mel(power: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """Returns the logarithms to the base 10 of the powers in mel bands, at least `LOG10_FLOOR`.

    Args:
        power: float32[recordings, frequencies, frames].
        filters: float32[frequencies, bands] (`mel_tensor`).

    Returns:
        float32[recordings, bands, frames].
    """
    return (filters.to(power.device).T @ power).clamp_(min=1e-10).log10_()


def whisper_scale(logs: torch.Tensor, loudest: torch.Tensor | float | None = None) -> torch.Tensor:
    """Returns log-mel features on the scale of Whisper, on which the 80 dB below the loudest value span 2.

    Args:
        logs: float32[recordings, bands, frames], logarithms to the base 10.
        loudest: Logarithm of the loudest value; None for that of each recording.

    Returns:
        float32[recordings, bands, frames], a new tensor.
    """
    import torch

    if loudest is None:
        loudest = logs.amax(dim=(1, 2), keepdim=True)
    floor = loudest - 8.0
    lifted = logs.clamp(min=floor) if isinstance(floor, float) else torch.maximum(logs, floor)
    return lifted.add_(4.0).div_(4.0)


def heard_samples(samples: int, padded: int, n_fft: int, hop_length: int) -> int:
    """Returns how many of the padded samples have windows in which anything is heard, rounded up to 16 frames.

    Whole groups of 16 frames have, in the matrix products of PyTorch on CPUs, the bits that they have among all frames.

    Args:
        samples: Before padding with zeros.
        padded: After it.
        n_fft: Samples of a window.
        hop_length: Samples from one window to the next.
    """
    frames = math.ceil((samples + n_fft) / hop_length) + 1
    return min(padded, math.ceil(frames / 16) * 16 * hop_length)


def padded_to(values: torch.Tensor, length: int, fill: float = 0.0) -> torch.Tensor:
    """Returns values with their last axis cut or padded at its end to a length; a view if nothing is added.

    Args:
        values: Of any shape.
        length: Of the last axis.
        fill: What it is padded with.
    """
    import torch

    missing = length - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=fill) if missing > 0 else values[..., :length]


def frame_mask(frames: list[int], width: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns which frames of a batch stand for the recordings: dtype[recordings, width], ones first, then zeros.

    Args:
        frames: Of each recording.
        width: Frames of the batch.
        dtype: Of the mask.
    """
    import torch

    return (torch.arange(width)[None] < torch.tensor(frames, dtype=torch.int64)[:, None]).to(dtype)


def first_padded_frame(samples: int, n_fft: int, hop_length: int) -> int:
    """Returns the first frame whose window reaches past the end of the samples, or else the last without padding."""
    return max(0, min((samples - n_fft // 2) // hop_length + 1, samples // hop_length))


def ending_of(samples: torch.Tensor, n_fft: int, hop_length: int) -> torch.Tensor:
    """Returns the last samples of a recording, from the window of `first_padded_frame` on: float32[some], a copy."""
    start = first_padded_frame(samples.shape[-1], n_fft, hop_length) * hop_length - n_fft // 2
    return samples[max(0, start) :].clone()


def padded_windows(
    ending: torch.Tensor, samples: int, padded: int, n_fft: int, hop_length: int, frames: int | None = None
) -> torch.Tensor:
    """Returns the samples of the windows that change when a recording is padded with zeros to a length.

    The windows of `first_padded_frame` and of all later frames in which anything is heard, for a transform that does
    not pad. As with `power_spectra`, all samples are mirrored at both ends.

    Args:
        ending: From `ending_of`.
        samples: Of the recording.
        padded: Samples after padding; more than `samples`.
        n_fft: Samples of a window.
        hop_length: Samples from one window to the next.
        frames: Of the whole recording after padding; None for padded // hop_length.
    """
    import torch

    half = n_fft // 2
    first = first_padded_frame(samples, n_fft, hop_length)
    last = (padded // hop_length if frames is None else frames) - 1
    if padded - samples > n_fft:
        last = min(last, (samples + half) // hop_length)
    stop = last * hop_length + half
    start = first * hop_length - half
    inside = padded_to(ending, min(padded, stop) - max(0, start))
    if stop > padded:
        inside = torch.cat([inside, inside[-1 - (stop - padded) : -1].flip(0)])
    if start < 0:
        inside = torch.cat([inside[1 : 1 - start].flip(0), inside])
    return inside
