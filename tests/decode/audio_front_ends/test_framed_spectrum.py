"""Mel banks, windows and framed spectra equal those of transformers' audio_utils."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function
from transformers.models.gemma3n.feature_extraction_gemma3n import create_fb_matrix

from energon_dali.decode.audio_front_ends.framed_spectrum import FramedSpectrum, window_weights
from energon_dali.decode.audio_front_ends.mel_bank import MelBank

KALDI = FramedSpectrum(
    frame_length=400,
    hop_length=160,
    fft_length=512,
    window="povey",
    periodic=False,
    center=False,
    preemphasis=0.97,
    remove_dc_offset=True,
    mel_floor=1.192092955078125e-07,
    mel=MelBank(
        num_bins=257, num_filters=80, low_hz=20, high_hz=8000, sampling_rate=16_000, scale="kaldi", in_mels=True
    ),
)
"""What SeamlessM4T and Speech2Text compute."""
RULES = {
    "kaldi": KALDI,
    "clap": FramedSpectrum(
        frame_length=1024,
        hop_length=480,
        fft_length=1024,
        log="dB",
        mel=MelBank(num_bins=513, num_filters=64, low_hz=0, high_hz=14_000, sampling_rate=48_000),
    ),
    "amplitudes": FramedSpectrum(
        frame_length=1024,
        hop_length=256,
        fft_length=1024,
        power=1,
        log="log10",
        mel=MelBank(
            num_bins=513, num_filters=80, low_hz=80, high_hz=7600, sampling_rate=16_000, scale="slaney", area=True
        ),
    ),
    "no logarithm": FramedSpectrum(
        frame_length=600,
        hop_length=250,
        fft_length=1024,
        log=None,
        window="hamming",
        mel=MelBank(num_bins=513, num_filters=80, low_hz=0.0, high_hz=8000.0, sampling_rate=22_050, area=True),
    ),
}


def expected_spectrum(rule: FramedSpectrum, waveform: Any) -> Any:
    """Returns what transformers computes by a rule."""
    return spectrogram(
        waveform,
        window_function(rule.frame_length, rule.window, periodic=rule.periodic),
        frame_length=rule.frame_length,
        hop_length=rule.hop_length,
        fft_length=rule.fft_length,
        power=float(rule.power),
        center=rule.center,
        preemphasis=rule.preemphasis,
        mel_filters=rule.mel.filters(),
        mel_floor=rule.mel_floor,
        log_mel=rule.log,
        remove_dc_offset=rule.remove_dc_offset,
    ).T


@pytest.mark.parametrize("scale", ["htk", "kaldi", "slaney"])
def test_mel_banks_are_those_of_transformers(scale: Any) -> None:
    shapes = ((257, 80, 20, 8000, 16_000), (201, 128, 0.0, 8000.0, 16_000), (513, 100, 0.0, 11_025.0, 22_050))
    for area, in_mels, shape in itertools.product((False, True), (False, True), shapes):
        num_bins, num_filters, low, high, rate = shape
        with warnings.catch_warnings(action="ignore"):  # filters narrower than a bin
            expected = mel_filter_bank(*shape, "slaney" if area else None, scale, in_mels)
        bank = MelBank(
            num_bins=num_bins,
            num_filters=num_filters,
            low_hz=low,
            high_hz=high,
            sampling_rate=rate,
            scale=scale,
            area=area,
            in_mels=in_mels,
        )
        np.testing.assert_array_equal(bank.filters(), expected)


def test_mel_bank_of_float32_bins_is_that_of_gemma() -> None:
    for rate, fft_length, high in ((16_000, 1024, 7600.0), (22_050, 1024, 8000.0)):
        num_bins = fft_length // 2 + 1
        bank = MelBank(
            num_bins=num_bins, num_filters=128, low_hz=125.0, high_hz=high, sampling_rate=rate, float32_bins=True
        )
        np.testing.assert_array_equal(bank.filters(), create_fb_matrix(num_bins, 125.0, high, 128, rate, fft_length))


@pytest.mark.parametrize("name", ["hann", "hamming", "povey", "boxcar"])
@pytest.mark.parametrize("periodic", [True, False])
def test_windows_are_those_of_transformers(name: Any, periodic: bool) -> None:
    np.testing.assert_array_equal(window_weights(name, 400, periodic), window_function(400, name, periodic=periodic))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_spectra_are_those_of_transformers(rule: FramedSpectrum) -> None:
    generator = np.random.default_rng(17)
    for seconds in (0.3, 1.7, 3.1):
        time = np.arange(round(seconds * rule.mel.sampling_rate)) / rule.mel.sampling_rate
        tone = np.sin(2 * np.pi * 440 * time * (1 + time)) * (time % 1 < 0.7)  # with digital silence
        waveform = (0.3 * tone + 0.01 * generator.standard_normal(len(time)) * (time > 0.1)).astype(np.float32)
        features = rule.compute(waveform)
        expected = expected_spectrum(rule, waveform)
        assert features.shape == expected.shape == (rule.num_frames(len(waveform)), rule.mel.num_filters)
        assert features.dtype == expected.dtype
        if rule.log is None:
            np.testing.assert_allclose(features, expected, rtol=1e-13, atol=0)
        else:  # sums in another order, so that a value between two of float32 may become the other one
            np.testing.assert_array_max_ulp(features, expected, maxulp=1)
            assert (features == expected).mean() > 0.999


def test_fewer_samples_than_a_frame_are_no_frame() -> None:
    assert KALDI.num_frames(399) == 0
    assert KALDI.num_frames(400) == 1
    assert replace(KALDI, center=True).num_frames(399) == 3
