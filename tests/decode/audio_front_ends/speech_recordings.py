"""Recordings of speech and signals, of lengths at which extractors behave differently."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import wave
from functools import lru_cache
from typing import Any

import numpy as np

Waveform = np.ndarray[Any, np.dtype[np.float32]]

WORDS = "Whoever decodes less can train more, and a model that hears can listen as well."


@lru_cache(maxsize=4)
def speech(rate: int) -> Waveform:
    """Returns some seconds of speech at a rate: espeak-ng's where it is installed, else a pulsed voice."""
    if shutil.which("espeak-ng"):
        spoken = subprocess.run(["espeak-ng", "--stdout", WORDS], check=True, capture_output=True).stdout
        with wave.open(io.BytesIO(spoken)) as file:
            own, frames = file.getframerate(), file.readframes(file.getnframes())
        samples = np.frombuffer(frames, np.int16).astype(np.float64) / 32768
        times = np.arange(len(samples) * rate // own) / rate
        return np.interp(times, np.arange(len(samples)) / own, samples).astype(np.float32)
    generator = np.random.default_rng(5)
    time = np.arange(5 * rate) / rate
    phase = 2 * np.pi * np.cumsum(110 + 25 * np.sin(2 * np.pi * 0.7 * time)) / rate
    voice = sum(np.sin(number * phase) / number for number in range(1, 24))
    envelope = np.clip(np.sin(2 * np.pi * 2.3 * time) + 0.4, 0, 1) * (time % 3 < 2.6)
    noise = 0.02 * generator.standard_normal(len(time))
    return (0.2 * (envelope * voice + (1 - envelope) * noise)).astype(np.float32)


def make_recording(draw: random.Random, samples: int, rate: int, *, floor: float = 0.0) -> Waveform:
    """Returns float32[samples] in [-1, 1]: speech, noise, a sweep, silence, clicks, or speech between silences.

    Args:
        draw: Decides what.
        samples: How many.
        rate: Samples per second.
        floor: Deviation of noise that is added.
    """
    generator = np.random.default_rng(draw.randrange(1 << 30))
    kind = draw.randrange(8)
    if kind < 3:
        made = np.resize(speech(rate), samples + 1000)[draw.randrange(1000) :][:samples]
    elif kind == 3:
        made = generator.standard_normal(samples) * 10 ** draw.uniform(-4, -0.5)
    elif kind == 4:
        time = np.arange(samples) / rate
        made = 0.8 * np.sin(2 * np.pi * (50 + 900 * time) * time)
    elif kind == 5:
        made = np.zeros(samples)
    elif kind == 6:
        made = (generator.random(samples) < 0.001).astype(np.float64)
    else:
        made = np.resize(speech(rate), samples) * (np.arange(samples) // max(1, samples // 5) % 2)
    loudness = draw.choice((1.0, 1.0, 0.1, 0.001))
    made = np.asarray(made) * loudness + floor * generator.standard_normal(samples)
    return np.clip(made, -1, 1).astype(np.float32)


def make_lengths(draw: random.Random, count: int, *, least: int, most: int, edges: tuple[int, ...]) -> list[int]:
    """Returns numbers of samples: at and next to the edges, then drawn ones.

    Args:
        draw: Decides.
        count: How many.
        least: Fewest samples.
        most: Most samples.
        edges: Lengths at which something changes, such as those of a hop or a chunk.
    """
    near = [edge + step for edge in edges for step in (-1, 0, 1) if least <= edge + step <= most]
    draw.shuffle(near)
    drawn = [int(least * (most / max(1, least)) ** draw.random()) for _ in range(count)]
    return (near[: count // 2] + drawn)[:count]
