"""Recordings for comparisons with extractors: tones, noise, clicks, digital silence, of many lengths and loudnesses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Waveform = NDArray[np.float32]


def make_recording(generator: np.random.Generator, num_samples: int, rate: int, channels: int = 1) -> Waveform:
    """Returns float32[samples], or float32[channels, samples] for several channels."""
    time = np.arange(num_samples) / rate
    tone = np.sin(2 * np.pi * generator.uniform(50, 0.4 * rate) * time * (1 + generator.uniform(-0.3, 0.3) * time))
    kind = generator.integers(6)
    mono = generator.uniform(0.001, 0.9) * tone
    if kind in (0, 1):
        mono = mono + generator.uniform(1e-5, 0.2) * generator.standard_normal(num_samples)
    elif kind == 2:
        mono = mono * (time % 0.5 < 0.3)  # digital silence between tones
    elif kind == 3:
        mono = generator.standard_normal(num_samples) * np.exp(-3 * time)
    elif kind == 4:
        mono = np.round(mono * 127) / 127  # coarse steps
    if generator.random() < 0.1:
        mono = mono + generator.uniform(-0.3, 0.3)  # an offset
    mono = np.clip(mono, -1, 1).astype(np.float32)
    if channels == 1:
        return mono
    return np.stack([mono * np.float32(1 - 0.3 * number) for number in range(channels)])


def make_batch(
    generator: np.random.Generator, count: int, rate: int, *, least: int, most: int, channels: int = 1
) -> list[Waveform]:
    """Returns recordings of random lengths, between `least` and `most` samples; some are the shortest or longest."""
    lengths = generator.integers(least, most + 1, count)
    lengths[generator.random(count) < 0.1] = least
    if generator.random() < 0.2:
        lengths[:] = lengths[0]
    return [make_recording(generator, int(length), rate, channels) for length in lengths]
