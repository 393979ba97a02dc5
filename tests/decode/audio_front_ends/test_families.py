"""Front ends equal their extractors: a few recordings and configurations of each; `family_sweep` compares all."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode.audio_front_ends import AudioFrontEnd, batch_audio
from energon_dali.decode.audio_front_ends.vocoders import SpeechT5Target
from energon_dali.errors import ConfigError, DecodeError
from tests.decode.audio_front_ends.family_cases import FAMILIES, AudioCase, all_cases
from tests.decode.audio_front_ends.family_comparison import compare

CASES: dict[str, list[AudioCase]] = defaultdict(list)
for some_case in all_cases():
    CASES[some_case.extractor].append(some_case)


@pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values")
@pytest.mark.parametrize("extractor", FAMILIES)
def test_front_ends_equal_their_extractors(extractor: str) -> None:
    published = [case for case in CASES[extractor] if case.published][:2]
    others = [case for case in CASES[extractor] if not case.published]
    for number, case in enumerate([*published[:1], *others[:: len(others) // 2]]):
        assert compare(case, number, batches=1, size=3).recordings == 3


def test_every_family_has_thirty_configurations() -> None:
    assert all(len(CASES[extractor]) >= 30 for extractor in FAMILIES)
    assert all(any(case.published for case in CASES[name]) for name in FAMILIES.keys() - _UNPUBLISHED)


_UNPUBLISHED = {"MuseSparkFeatureExtractor", "VibeVoiceAcousticTokenizerFeatureExtractor"} | {
    "Gemma4UnifiedAudioFeatureExtractor"
}
"""Extractors whose published configurations are their defaults, or not known to this project."""


def front_end_of(extractor: str, fields: dict[str, Any] | None = None, **config: Any) -> AudioFrontEnd:
    """Returns the front end for the values of a file."""
    return AudioFrontEnd.from_processor({"feature_extractor_type": extractor, **config}, **(fields or {}))


@pytest.mark.parametrize(
    ("extractor", "config", "fields", "message"),
    [
        ("Wav2Vec2FeatureExtractor", {"feature_size": 2}, {}, "one channel"),
        (
            "Wav2Vec2FeatureExtractor",
            {"padding_side": "left", "return_attention_mask": True},
            {},
            "the extractor normalises the first samples of a row",
        ),
        ("Wav2Vec2FeatureExtractor", {"padding_side": "middle"}, {}, "right or left"),
        ("Wav2Vec2FeatureExtractor", {}, {"padding": "short"}, "longest, max_length, none"),
        ("Wav2Vec2FeatureExtractor", {}, {"truncation": True}, "no max_length"),
        ("Wav2Vec2FeatureExtractor", {}, {"padding": "max_length"}, "no max_length"),
        ("Wav2Vec2FeatureExtractor", {"feature_dither": 0.5}, {}, "feature_dither=0.5"),
        ("EncodecFeatureExtractor", {}, {"truncation": True, "max_length": 100}, 'padding="none"'),
        ("KyutaiSpeechToTextFeatureExtractor", {"feature_size": 2}, {}, "silence around two channels"),
        ("Gemma3nAudioFeatureExtractor", {"dither": 0.1}, {}, "random noise"),
        ("Gemma3nAudioFeatureExtractor", {"padding_value": 0.5}, {}, "padded with silence"),
        ("Gemma4AudioFeatureExtractor", {"mel_floor": 0}, {}, "greater than 0"),
        ("Gemma4AudioFeatureExtractor", {"per_bin_mean": [1.0, 2.0]}, {}, "each of 128 bins"),
        ("Speech2TextFeatureExtractor", {"dither": 1.0}, {}, "random noise"),
        ("Speech2TextFeatureExtractor", {}, {"returns_mask": False}, "needs the mask"),
        ("ClapFeatureExtractor", {"feature_size": 80}, {}, "64 bins"),
        ("ClapFeatureExtractor", {"truncation": "longest"}, {}, "fusion, rand_trunc"),
        ("UnivNetFeatureExtractor", {"win_length": 512}, {}, "differ"),
        ("ClvpFeatureExtractor", {"mel_norms": [1.0]}, {}, "each of 80 bins"),
        (
            "VibeVoiceAcousticTokenizerFeatureExtractor",
            {},
            {"truncation": True, "max_length": 9, "padding": "none"},
            "cannot cut",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(
    extractor: str, config: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        front_end_of(extractor, fields, **config)


@pytest.mark.parametrize(
    ("extractor", "num_samples"),
    [
        ("SeamlessM4TFeatureExtractor", 559),
        ("Speech2TextFeatureExtractor", 399),
        ("ASTFeatureExtractor", 399),
        ("ClapFeatureExtractor", 0),
        ("UnivNetFeatureExtractor", 384),
        ("PeAudioFeatureExtractor", 0),
    ],
)
def test_recordings_that_are_too_short_are_refused(extractor: str, num_samples: int) -> None:
    front_end = front_end_of(extractor)
    with pytest.raises(DecodeError, match="samples"):
        front_end.layout(num_samples)
    assert front_end.layout(num_samples + 1).num_samples == num_samples + 1


def test_rows_of_different_lengths_form_no_batch() -> None:
    front_end = front_end_of("Wav2Vec2FeatureExtractor", {"padding": "none"})
    inputs = [front_end.render(np.ones(length, np.float32)) for length in (1000, 2000)]
    with pytest.raises(ConfigError, match="Rows of 1000 and 2000 elements form no batch"):
        batch_audio(inputs)


def test_values_have_the_dtype_asked_for() -> None:
    for extractor in FAMILIES:
        front_end = front_end_of(extractor, {"dtype": "bfloat16"})
        recording = front_end.render(np.zeros((front_end.channels, 9000), np.float32) + np.float32(0.1))
        made = batch_audio([recording])
        assert made[front_end.model_keys[0]].dtype == recording.values.dtype == torch.bfloat16


def test_clap_draws_from_the_seed_of_the_recording() -> None:
    front_end = front_end_of("ClapFeatureExtractor", max_length_s=1, sampling_rate=16_000, frequency_max=8000)
    waveform = np.random.default_rng(2).standard_normal(80_000).astype(np.float32) / 9
    starts = {seed: front_end.starts_of(front_end.render(waveform, seed=seed)) for seed in range(20)}  # type: ignore[attr-defined]
    assert starts[3] == front_end.starts_of(front_end.render(waveform, seed=3))  # type: ignore[attr-defined]
    assert len({tuple(some) for some in starts.values()}) > 10
    longest = 80_000 // 480 - 16_000 // 480
    assert all(first < middle < last <= longest for first, middle, last in starts.values())


def test_speech_t5_has_a_front_end_for_each_side() -> None:
    encoder = front_end_of("SpeechT5FeatureExtractor")
    decoder = SpeechT5Target.from_processor({"feature_extractor_type": "SpeechT5FeatureExtractor"})
    assert (encoder.family, decoder.family) == ("speecht5", "speecht5_target")
    assert decoder.layout(16_000).num_frames == 63
