"""Front ends equal their extractors: a few recordings and configurations of each; `family_sweep` compares all."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode.audio_front_ends import AudioFrontEnd, batch_audio
from energon_dali.decode.audio_front_ends.vocoders import SpeechT5Target
from energon_dali.errors import ConfigError, DecodeError
from tests.decode.audio_front_ends.family_cases import FAMILIES, AudioCase, all_cases
from tests.decode.audio_front_ends.family_comparison import compare
from tests.decode.audio_front_ends.speech_cases import call_processor
from tests.decode.front_ends.tile_cases import processor_class, tokenizer

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


GEMMA_TOKENS = {
    "image_token": "<img>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "audio_token": "<|aud|>",
    "boa_token": "<boa>",
    "eoa_token": "<eoa>",
}


@pytest.mark.parametrize("module", ["gemma3n", "gemma4", "gemma4_unified"])
def test_texts_of_gemma_are_those_of_its_processors(module: str) -> None:
    processor = gemma_processor(module)
    front_end = AudioFrontEnd.from_processor(processor)
    rate, generator = 16_000, np.random.default_rng(5)
    lengths = [600, 640, 641, rate, 31 * rate, *generator.integers(600, 4 * rate, 4).tolist()]
    waveforms = [generator.standard_normal(length).astype(np.float32) / 9 for length in lengths]
    inputs = [front_end.render(waveform) for waveform in waveforms]
    layouts = [recording.layout for recording in inputs]
    made, texts = call_processor(processor, waveforms)
    assert texts == [front_end.audio_text(layout) for layout in layouts]
    assert front_end.expand_text("a <|aud|> b" * len(texts), layouts) == "".join(f"a {text} b" for text in texts)
    if module == "gemma3n":
        counted = processor._get_num_multimodal_tokens(audio_lengths=lengths)["num_audio_tokens"]
        assert counted == [layout.num_tokens for layout in layouts]
    else:  # it does not cut, as the extractor does
        counted = [
            processor._compute_audio_num_tokens(np.zeros(length), rate) for length in lengths if length < 4 * rate
        ]
        assert counted == [layout.num_tokens for layout in layouts if layout.num_samples < 4 * rate]
    batch = batch_audio(inputs)
    for key in front_end.model_keys:
        torch.testing.assert_close(batch[key], made[key], rtol=0, atol=0)
    assert front_end.audio_token_id == processor.tokenizer.convert_tokens_to_ids("<|aud|>")


def gemma_processor(module: str) -> Any:
    """Returns a processor of Gemma with a tokenizer of a few words."""
    name = "".join(word.capitalize() for word in module.split("_"))
    made = import_module(f"transformers.models.{module}.feature_extraction_{module}")
    kind = processor_class(module, f"{name}Processor")
    inner = getattr(made, f"{name}AudioFeatureExtractor")()
    others = {} if module == "gemma3n" else {"video_processor": None}
    return kind(feature_extractor=inner, image_processor=None, tokenizer=tokenizer(**GEMMA_TOKENS), **others)
