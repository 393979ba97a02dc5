"""Mel filter banks, with the arithmetic of transformers' extractors, applied to the bands that they cover."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MelScale = Literal["htk", "kaldi", "slaney"]
BinRule = Literal["linspace", "float32", "mel"]
Floats = NDArray[np.float64]
_BAND_FILTERS = 16
"""Filters that are applied by one product of matrices: fewer skip more zeros, more need fewer products."""


@dataclass(frozen=True, kw_only=True)
class MelBank:
    """Triangular filters that sum the bins of a spectrum; a value.

    The formulas are those of `transformers.audio_utils.mel_filter_bank`, whose numbers `filters` has bit by bit.
    """

    num_bins: int
    """Bins of the spectrum: half the length of the Fourier transform, and one."""
    num_filters: int
    """Filters, which become the mel bins."""
    low: float
    """Hz where the first filter begins."""
    high: float
    """Hz where the last filter ends."""
    sampling_rate: int
    """Samples per second."""
    scale: MelScale = "htk"
    """Which formula makes mels of Hz."""
    normalize: bool = False
    """Whether each filter is divided by half its width ("slaney")."""
    bins: BinRule = "linspace"
    """Where the bins are: "linspace" up to half the rate in Hz, "float32" the same of float32 numbers, or "mel": the
    triangles are drawn in mels."""

    def filters(self) -> Floats:
        """Returns float64[bins, filters], shared by equal banks and read-only."""
        return _filters(self)

    def apply(self, spectrum: NDArray[Any]) -> Floats:
        """Returns float64[frames, filters] of float64 or float32[frames, bins].

        Zeros of the filters are skipped, so that sums differ from those of one product of matrices in their rounding
        to float64.
        """
        mels = np.empty((len(spectrum), self.num_filters))
        for filters, bins, weights in _bands(self):
            np.matmul(spectrum[:, bins], weights, out=mels[:, filters])
        return mels


@lru_cache(maxsize=64)
def _filters(bank: MelBank) -> Floats:
    low, high = (_mels(np.float64(frequency), bank.scale) for frequency in (bank.low, bank.high))
    edges_in_mels = np.linspace(low, high, bank.num_filters + 2)
    edges = _hertz(edges_in_mels, bank.scale)
    places: NDArray[Any]
    if bank.bins == "mel":
        width = bank.sampling_rate / ((bank.num_bins - 1) * 2)
        places, corners = _mels(width * np.arange(bank.num_bins), bank.scale), edges_in_mels
    elif bank.bins == "float32":
        width = bank.sampling_rate / ((bank.num_bins - 1) * 2)
        places, corners = np.arange(bank.num_bins, dtype=np.float32) * np.float32(width), edges
    else:
        places, corners = np.linspace(0, bank.sampling_rate // 2, bank.num_bins), edges
    widths = np.diff(corners)
    distances = corners[None, :] - places[:, None]
    filters = np.maximum(0.0, np.minimum(-distances[:, :-2] / widths[:-1], distances[:, 2:] / widths[1:]))
    if bank.normalize:
        filters *= 2.0 / (corners[2:] - corners[:-2])
    filters.flags.writeable = False
    return filters


@lru_cache(maxsize=64)
def _bands(bank: MelBank) -> tuple[tuple[slice, slice, Floats], ...]:
    """Returns (filters, bins, weights) of consecutive filters: the bins that any of them covers."""
    filters, bands = _filters(bank), []
    for start in range(0, bank.num_filters, _BAND_FILTERS):
        some = filters[:, start : start + _BAND_FILTERS]
        covered = np.flatnonzero(some.any(axis=1))
        bins = slice(int(covered[0]), int(covered[-1]) + 1) if len(covered) else slice(0, 1)
        bands.append((slice(start, start + some.shape[1]), bins, np.ascontiguousarray(some[bins])))
    return tuple(bands)


def _mels(frequencies: Any, scale: MelScale) -> Any:
    """Returns mels of Hz: a float64 or an array of them."""
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + frequencies / 700.0)
    if scale == "kaldi":
        return 1127.0 * np.log(1.0 + frequencies / 700.0)
    linear = 3.0 * frequencies / 200.0
    with np.errstate(divide="ignore"):
        return np.where(frequencies >= 1000.0, 15.0 + np.log(frequencies / 1000.0) * (27.0 / np.log(6.4)), linear)


def _hertz(mels: Floats, scale: MelScale) -> Floats:
    if scale == "htk":
        return 700.0 * (np.power(10, mels / 2595.0) - 1.0)
    if scale == "kaldi":
        return 700.0 * (np.exp(mels / 1127.0) - 1.0)
    return np.where(mels >= 15.0, 1000.0 * np.exp(np.log(6.4) / 27.0 * (mels - 15.0)), 200.0 * mels / 3.0)
