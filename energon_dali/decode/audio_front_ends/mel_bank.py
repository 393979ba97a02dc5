"""Mel filter banks, with the arithmetic of transformers' extractors, applied to the bands that they cover."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.decode.audio_front_ends.spectrogram import MelScale, mel_filters

Floats = NDArray[np.float64]

_BAND_FILTERS = 16
"""Filters that are applied by one product of matrices: fewer skip more zeros, more need fewer products."""


@dataclass(frozen=True, kw_only=True)
class MelBank:
    """Triangular filters that sum the bins of a spectrum; a value."""

    num_bins: int
    """Bins of the spectrum: half the length of the Fourier transform, and one."""
    num_filters: int
    """Filters, which become the mel bins."""
    low_hz: float
    """Where the first filter begins."""
    high_hz: float
    """Where the last filter ends."""
    sampling_rate: int
    """Samples per second."""
    scale: MelScale = "htk"
    """On which the filters are at equal distances."""
    area: bool = False
    """Divides each filter by half its width."""
    in_mels: bool = False
    """Whether the triangles have straight sides on the mel scale, or in Hz."""
    float32_bins: bool = False
    """Whether the frequencies of the bins are float32, as in Gemma 3n, and exact also for odd sampling rates."""

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
    if bank.float32_bins:
        return _filters_of_float32_bins(bank)
    return mel_filters(
        bank.num_bins,
        bank.num_filters,
        bank.sampling_rate,
        low_hz=bank.low_hz,
        high_hz=bank.high_hz,
        scale=bank.scale,
        area=bank.area,
        in_mels=bank.in_mels,
    )


def _filters_of_float32_bins(bank: MelBank) -> Floats:
    low, high = (2595.0 * math.log10(1.0 + hertz / 700.0) for hertz in (bank.low_hz, bank.high_hz))
    edges = 700.0 * (10 ** (np.linspace(low, high, bank.num_filters + 2) / 2595.0) - 1.0)
    step = bank.sampling_rate / ((bank.num_bins - 1) * 2)
    distances = edges[None] - (np.arange(bank.num_bins, dtype=np.float32) * np.float32(step))[:, None]
    widths = np.diff(edges)
    filters: Floats = np.maximum(0.0, np.minimum(-distances[:, :-2] / widths[:-1], distances[:, 2:] / widths[1:]))
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
