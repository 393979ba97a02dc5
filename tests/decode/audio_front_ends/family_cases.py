"""Configurations of extractors that are compared with front ends: published ones, and variations of their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class AudioCase:
    """An extractor, how it is called, and the fields of the front end that mean the same."""

    extractor: str
    """Name of its class in transformers."""
    config: dict[str, Any] = field(default_factory=dict)
    """Arguments of its constructor."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of its call."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the front end."""
    published: str = ""
    """The model whose configuration it is."""

    @property
    def name(self) -> str:
        """For test reports."""
        words = [f"{key}={value}" for key, value in {**self.config, **self.fields}.items()]
        return " ".join([self.extractor.removesuffix("FeatureExtractor"), self.published or " ".join(words)])[:90]


@dataclass(frozen=True)
class AudioFamily:
    """How the cases of an extractor are compared."""

    least_seconds: float
    """Shortest recordings."""
    most_seconds: float
    """Longest recordings."""
    ulps: int = 0
    """Units in the last place of float32 by which values may differ."""
    deviation: float = 0.0
    """What values may differ by instead: where means are subtracted, differences of the last place become larger."""


KALDI_NORMALIZED = 2.0**-19
"""Features of Kaldi's are below 32 before they are normalised, where the last place of float32 is 2^-19; deviations of
bins that vary are above 1."""

FAMILIES: dict[str, AudioFamily] = {
    "Wav2Vec2FeatureExtractor": AudioFamily(0.01, 3.0),
    "SpeechT5FeatureExtractor": AudioFamily(0.05, 3.0),
    "EncodecFeatureExtractor": AudioFamily(0.01, 2.5),
    "KyutaiSpeechToTextFeatureExtractor": AudioFamily(0.01, 2.0),
    "DacFeatureExtractor": AudioFamily(0.01, 2.0),
    "DiaFeatureExtractor": AudioFamily(0.01, 2.0),
    "PeAudioFeatureExtractor": AudioFamily(0.01, 2.0),
    "MuseSparkFeatureExtractor": AudioFamily(0.01, 2.0),
    "VibeVoiceAcousticTokenizerFeatureExtractor": AudioFamily(0.01, 2.0),
    "Gemma4UnifiedAudioFeatureExtractor": AudioFamily(0.01, 3.0),
    "Gemma3nAudioFeatureExtractor": AudioFamily(0.04, 3.0, ulps=1),
    "Gemma4AudioFeatureExtractor": AudioFamily(0.03, 3.0, ulps=1),
    "SeamlessM4TFeatureExtractor": AudioFamily(0.05, 3.0, deviation=KALDI_NORMALIZED),
    "Speech2TextFeatureExtractor": AudioFamily(0.05, 3.0, deviation=KALDI_NORMALIZED),
    "ASTFeatureExtractor": AudioFamily(0.06, 3.0, ulps=1),
    "ClapFeatureExtractor": AudioFamily(0.05, 4.0, ulps=1),
    "UnivNetFeatureExtractor": AudioFamily(0.1, 2.0, ulps=1),
    "ClvpFeatureExtractor": AudioFamily(0.05, 2.0, ulps=1),
}

PADDINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"padding": True}, {}),
    ({"padding": "max_length", "max_length": 50_000}, {"padding": "max_length", "max_length": 50_000}),
    ({"padding": True, "pad_to_multiple_of": 1000}, {"pad_to_multiple_of": 1000}),
    (
        {"padding": "max_length", "max_length": 20_000, "truncation": True},
        {"padding": "max_length", "max_length": 20_000, "truncation": True},
    ),
    (
        {"padding": True, "max_length": 20_000, "truncation": True, "pad_to_multiple_of": 640},
        {"max_length": 20_000, "truncation": True, "pad_to_multiple_of": 640},
    ),
)
"""(options of the call, fields) of extractors of samples."""
FRAME_PADDINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"padding": True}, {}),
    ({"padding": "max_length", "max_length": 400}, {"padding": "max_length", "max_length": 400}),
    ({"padding": True, "pad_to_multiple_of": 7}, {"pad_to_multiple_of": 7}),
    (
        {"padding": "max_length", "max_length": 100, "truncation": True},
        {"padding": "max_length", "max_length": 100, "truncation": True},
    ),
    (
        {"padding": True, "max_length": 90, "truncation": True, "pad_to_multiple_of": 8},
        {"max_length": 90, "truncation": True, "pad_to_multiple_of": 8},
    ),
)
"""Likewise of extractors of frames."""


def wav2vec2_cases() -> Iterator[AudioCase]:
    """Yields cases of wav2vec 2 and models with its extractor."""
    name = "Wav2Vec2FeatureExtractor"
    base = {"feature_size": 1, "padding_value": 0.0, "sampling_rate": 16_000}
    models = {
        "facebook/wav2vec2-base-960h": {**base, "do_normalize": True, "return_attention_mask": False},
        "facebook/wav2vec2-large-960h-lv60-self": {**base, "do_normalize": True, "return_attention_mask": True},
        "facebook/hubert-large-ls960-ft": {**base, "do_normalize": True, "return_attention_mask": True},
        "microsoft/wavlm-base-plus": {**base, "do_normalize": False, "return_attention_mask": True},
        "microsoft/unispeech-sat-base": {**base, "do_normalize": False, "return_attention_mask": False},
        "facebook/data2vec-audio-base-960h": {**base, "do_normalize": True, "return_attention_mask": False},
        "facebook/mms-1b-all": {**base, "do_normalize": True, "return_attention_mask": True, "padding_side": "right"},
        "asapp/sew-d-tiny-100k": {**base, "do_normalize": True, "return_attention_mask": False},
    }
    for model, config in models.items():
        yield AudioCase(name, config, {"padding": True}, {}, model)
    for normalize, masks, (options, fields) in itertools.product((True, False), (True, False), PADDINGS):
        yield AudioCase(name, {"do_normalize": normalize, "return_attention_mask": masks}, options, fields)
    for rate, value in ((8000, 0.5), (44_100, -1.0)):
        yield AudioCase(name, {"sampling_rate": rate, "padding_value": value}, {"padding": True})
    left = {"do_normalize": False, "padding_side": "left", "return_attention_mask": True}
    yield AudioCase(name, left, {"padding": True})
    call = {"padding": True, "return_attention_mask": True}
    yield AudioCase(name, {}, call, {"returns_mask": True})


def speecht5_cases() -> Iterator[AudioCase]:
    """Yields cases of SpeechT5, of its encoder and of its decoder."""
    name = "SpeechT5FeatureExtractor"
    published = {"do_normalize": False, "feature_size": 1, "fmax": 7600, "fmin": 80, "hop_length": 16}
    published |= {"mel_floor": 1e-10, "num_mel_bins": 80, "padding_side": "right", "padding_value": 0.0}
    published |= {"return_attention_mask": True, "sampling_rate": 16_000, "win_function": "hann_window"}
    published |= {"win_length": 64}
    yield AudioCase(name, published, {"padding": True}, {}, "microsoft/speecht5_asr")
    yield AudioCase(name, published, {"padding": True, "target": True}, {}, "microsoft/speecht5_tts")
    for (options, fields), normalize in itertools.product(PADDINGS, (True, False)):
        yield AudioCase(name, {"do_normalize": normalize}, options, fields)
    for (options, fields), masks in itertools.product(FRAME_PADDINGS, (True, False)):
        yield AudioCase(name, {"return_attention_mask": masks}, {**options, "target": True}, fields)
    for changed in (
        {"num_mel_bins": 40, "fmin": 0, "fmax": 8000},
        {"win_length": 32, "hop_length": 8},
        {"win_function": "hamming_window", "mel_floor": 1e-5},
        {"win_length": 50, "hop_length": 12, "sampling_rate": 22_050},
        {"padding_value": -3.0},
        {"win_function": "povey"},
        {"sampling_rate": 24_000, "fmax": 11_000, "num_mel_bins": 100},
        {"win_length": 25, "hop_length": 10},
    ):
        yield AudioCase(name, changed, {"padding": True, "target": True})


def codec_cases() -> Iterator[AudioCase]:
    """Yields cases of EnCodec, Mimi, Kyutai's speech to text, DAC, Dia, Perception Encoder Audio."""
    one = "EncodecFeatureExtractor"
    encodec = {"feature_size": 1, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True}
    yield AudioCase(one, {**encodec, "sampling_rate": 24_000}, {}, {}, "facebook/encodec_24khz")
    wide = {**encodec, "chunk_length_s": 1.0, "overlap": 0.01, "feature_size": 2, "sampling_rate": 48_000}
    yield AudioCase(one, wide, {}, {}, "facebook/encodec_48khz")
    yield AudioCase(one, {**encodec, "sampling_rate": 24_000}, {}, {}, "kyutai/mimi")
    yield AudioCase(one, {**encodec, "sampling_rate": 24_000}, {}, {}, "kyutai/moshiko-pytorch-bf16")
    yield AudioCase(one, {**encodec, "sampling_rate": 32_000}, {}, {}, "facebook/musicgen-small")
    yield AudioCase(one, {**encodec, "sampling_rate": 24_000}, {}, {}, "sesame/csm-1b")
    plain = [pair for pair in PADDINGS if "truncation" not in pair[0] and "pad_to_multiple_of" not in pair[0]]
    for size, (options, fields) in itertools.product((1, 2), plain):
        yield AudioCase(one, {"feature_size": size}, options, fields)
    for seconds, overlap, size in itertools.product((0.1, 0.7, 1.0), (0.0, 0.01, 0.5, 0.999), (1, 2)):
        yield AudioCase(one, {"chunk_length_s": seconds, "overlap": overlap, "feature_size": size})
    chunked = {"chunk_length_s": 0.5, "overlap": 0.25}
    longest = {"padding": "max_length", "max_length": 70_000}
    yield AudioCase(one, chunked, longest, longest)
    cut = {"truncation": True, "max_length": 200}
    yield AudioCase(one, chunked, {"padding": False, **cut}, {"padding": "none", **cut})
    yield AudioCase(one, {"padding_side": "left", "padding_value": 0.25})
    yield AudioCase(one, {"chunk_length_s": 1.0}, {}, {})

    kyutai = "KyutaiSpeechToTextFeatureExtractor"
    published = {**encodec, "audio_delay_seconds": 2.5, "audio_silence_prefix_seconds": 0.0, "sampling_rate": 24_000}
    yield AudioCase(kyutai, published, {}, {}, "kyutai/stt-2.6b-en-trfs")
    published = {**published, "audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 1.0}
    yield AudioCase(kyutai, published, {}, {}, "kyutai/stt-1b-en_fr-trfs")
    for delay, prefix, rate in itertools.product((0.0, 0.3, 1.7), (0.0, 0.25, 1.0), (16_000, 24_000)):
        seconds = {"audio_delay_seconds": delay, "audio_silence_prefix_seconds": prefix, "sampling_rate": rate}
        yield AudioCase(kyutai, seconds)
    for chunks, overlap in itertools.product((0.1, 0.5, 1.0), (0.0, 0.1)):
        yield AudioCase(kyutai, {"chunk_length_s": chunks, "overlap": overlap, "audio_delay_seconds": 0.5})
    for options, fields in plain:
        yield AudioCase(kyutai, {}, options, fields)
        yield AudioCase(kyutai, {"padding_side": "left", "audio_silence_prefix_seconds": 0.1}, options, fields)

    for name, published, rate in (
        ("DacFeatureExtractor", "descript/dac_16khz", 16_000),
        ("DacFeatureExtractor", "descript/dac_24khz", 24_000),
        ("DacFeatureExtractor", "descript/dac_44khz", 44_100),
        ("DiaFeatureExtractor", "nari-labs/Dia-1.6B-0626", 44_100),
        ("PeAudioFeatureExtractor", "facebook/pe-av-large", 48_000),
    ):
        hop = {16_000: 320, 24_000: 320, 44_100: 512, 48_000: 1920}[rate]
        yield AudioCase(name, {"sampling_rate": rate, "hop_length": hop}, {}, {}, published)
    for name in ("DacFeatureExtractor", "DiaFeatureExtractor", "PeAudioFeatureExtractor"):
        for hop, rate, (options, fields) in itertools.product((320, 441, 513), (16_000, 24_000, 44_100), plain):
            yield AudioCase(name, {"hop_length": hop, "sampling_rate": rate}, options, fields)
        for hop, length in itertools.product((320, 441), (100, 1000, 1234)):
            options = {"padding": False, "truncation": True, "max_length": length}
            # Only recordings of one length, or longer than that, form a batch.
            yield AudioCase(name, {"hop_length": hop}, options, {**options, "padding": "none"})
        for side, value in itertools.product(("left", "right"), (0.1, -0.5, 1.0)):
            yield AudioCase(name, {"padding_side": side, "padding_value": value})
    for hop, rate in itertools.product((320, 512), (16_000, 44_100)):
        yield AudioCase("DiaFeatureExtractor", {"feature_size": 2, "hop_length": hop, "sampling_rate": rate})

    muse = "MuseSparkFeatureExtractor"
    for size, masks, (options, fields) in itertools.product((1920, 480, 7), (True, False), PADDINGS):
        changed = {key: value for key, value in options.items() if key != "pad_to_multiple_of" or size == 480}
        same = {key: value for key, value in fields.items() if key in changed}
        yield AudioCase(muse, {"samples_per_token": size, "return_attention_mask": masks}, changed, same)

    vibe = "VibeVoiceAcousticTokenizerFeatureExtractor"
    for size, loud, (options, fields) in itertools.product((3200, 7), (-25, -5), PADDINGS[:3]):
        yield AudioCase(vibe, {"pad_to_multiple_of": size, "target_dB_FS": loud}, options, fields)
    for normalize, eps, size in itertools.product((True, False), (1e-6, 1e-2), (3200, 480, 64)):
        yield AudioCase(vibe, {"normalize_audio": normalize, "eps": eps, "pad_to_multiple_of": size})
    for masks, loud in itertools.product((True, False), (-40, -25, 0)):
        call = {"return_attention_mask": masks}
        yield AudioCase(vibe, {"target_dB_FS": loud}, call, {"returns_mask": masks})

    unified = "Gemma4UnifiedAudioFeatureExtractor"
    for size, value in itertools.product((640, 320, 100, 2), (0.0, 1.0)):
        yield AudioCase(unified, {"audio_samples_per_token": size, "feature_size": size, "padding_value": value})
    for size, length, cuts in itertools.product((640, 160), (10, 33, 500), (True, False)):
        options = {"padding": True, "max_length": length, "truncation": cuts}
        fields = {"max_length": length if cuts else None, "truncation": cuts}
        yield AudioCase(unified, {"audio_samples_per_token": size}, options, fields)
    for length, size in itertools.product((100, 750), (640, 400)):
        padded = {"padding": "max_length", "max_length": length}
        yield AudioCase(unified, {"audio_samples_per_token": size}, padded, {**padded, "truncation": True})
    for side, rate, value in itertools.product(("left", "right"), (16_000, 24_000), (0.0, -1.0)):
        yield AudioCase(unified, {"padding_side": side, "sampling_rate": rate, "padding_value": value})


def usm_cases() -> Iterator[AudioCase]:
    """Yields cases of Gemma 3n and Gemma 4."""
    three, four = "Gemma3nAudioFeatureExtractor", "Gemma4AudioFeatureExtractor"
    published = {"dither": 0.0, "feature_size": 128, "fft_overdrive": True, "hop_length_ms": 10.0, "mel_floor": 1e-05}
    published |= {"frame_length_ms": 32.0, "input_scale_factor": 1.0, "max_frequency": 7600.0, "min_frequency": 125.0}
    published |= {"padding_value": 0.0, "preemphasis": 0.97, "preemphasis_htk_flavor": True, "sampling_rate": 16_000}
    yield AudioCase(three, published, {}, {}, "google/gemma-3n-E2B-it")
    yield AudioCase(four, {}, {}, {}, "google/gemma-4-E2B-it")
    means = [float(value) for value in np.linspace(-3, 2, 128)]
    deviations = [float(value) for value in np.linspace(0.5, 3, 128)]
    changes: tuple[dict[str, Any], ...] = (
        {"preemphasis_htk_flavor": False},
        {"preemphasis": 0.0},
        {"preemphasis": 0.5},
        {"fft_overdrive": False},
        {"fft_overdrive": True},
        {"frame_length_ms": 25.0, "hop_length_ms": 12.5},
        {"frame_length_ms": 20.0},
        {"hop_length_ms": 5.0},
        {"feature_size": 64},
        {"feature_size": 80, "min_frequency": 20.0, "max_frequency": 8000.0},
        {"mel_floor": 1e-3},
        {"input_scale_factor": 32768.0},
        {"per_bin_mean": means},
        {"per_bin_stddev": deviations},
        {"per_bin_mean": means, "per_bin_stddev": deviations},
        {"sampling_rate": 24_000, "max_frequency": 11_000.0},
    )
    for name, changed in itertools.product((three, four), changes):
        yield AudioCase(name, changed)
    for name in (three, four):
        for options in (
            {"pad_to_multiple_of": None},
            {"pad_to_multiple_of": 1},
            {"pad_to_multiple_of": 1000},
            {"max_length": 30_000},
            {"max_length": 30_000, "padding": "max_length"},
            {"max_length": 29_999, "padding": "max_length", "pad_to_multiple_of": 100},
            {"max_length": 16_000, "pad_to_multiple_of": None},
            {"max_length": 60_000, "padding": "max_length", "truncation": False},
        ):
            for overdrive in (True, False):
                yield AudioCase(name, {"fft_overdrive": overdrive}, options, dict(options))


def kaldi_cases() -> Iterator[AudioCase]:
    """Yields cases of SeamlessM4T, Speech2Text and the Audio Spectrogram Transformer."""
    seamless, text, ast = "SeamlessM4TFeatureExtractor", "Speech2TextFeatureExtractor", "ASTFeatureExtractor"
    base = {"feature_size": 80, "num_mel_bins": 80, "return_attention_mask": True, "sampling_rate": 16_000}
    for model, value in (("facebook/hf-seamless-m4t-medium", 0.0), ("facebook/seamless-m4t-v2-large", 0.0)):
        yield AudioCase(seamless, {**base, "padding_value": value, "stride": 2}, {}, {}, model)
    yield AudioCase(seamless, {**base, "padding_value": 1, "stride": 2}, {}, {}, "facebook/w2v-bert-2.0")
    for stride, (options, fields) in itertools.product((1, 2, 3), FRAME_PADDINGS):
        yield AudioCase(seamless, {"stride": stride}, options, fields)
    for stride, mels in itertools.product((2, 4), (40, 128)):
        yield AudioCase(seamless, {"stride": stride, "num_mel_bins": mels, "feature_size": mels})
    for call, fields in (
        ({"do_normalize_per_mel_bins": False}, {"normalizes": False}),
        ({"return_attention_mask": False}, {"returns_mask": False}),
        ({"pad_to_multiple_of": None}, {"pad_to_multiple_of": None}),
        ({"pad_to_multiple_of": 5}, {"pad_to_multiple_of": 5}),
    ):
        yield AudioCase(seamless, {}, call, fields)
        yield AudioCase(seamless, {"padding_value": 0.5, "padding_side": "left"}, call, fields)

    published = {**base, "do_ceptral_normalize": True, "normalize_means": True, "normalize_vars": True}
    for model in ("facebook/s2t-small-librispeech-asr", "facebook/s2t-medium-mustc-multilingual-st"):
        yield AudioCase(text, {**published, "padding_value": 0.0}, {"padding": True}, {}, model)
    flags = ((True, True, True), (True, False, True), (True, True, False), (False, True, True))
    for (normalize, means, deviations), (options, fields) in itertools.product(flags, FRAME_PADDINGS):
        config = {"do_ceptral_normalize": normalize, "normalize_means": means, "normalize_vars": deviations}
        yield AudioCase(text, config, options, fields)
    for mels, value in itertools.product((40, 128), (0.0, -2.0)):
        yield AudioCase(text, {"num_mel_bins": mels, "feature_size": mels, "padding_value": value}, {"padding": True})
    for rate in (8000, 22_050):
        yield AudioCase(text, {"sampling_rate": rate}, {"padding": True})
    yield AudioCase(text, {"do_ceptral_normalize": False, "padding_side": "left"}, {"padding": True})
    unmasked = {"padding": True, "return_attention_mask": False}
    yield AudioCase(text, {"do_ceptral_normalize": False}, unmasked, {"returns_mask": False})

    published = {"do_normalize": True, "feature_size": 1, "max_length": 1024, "mean": -4.2677393, "num_mel_bins": 128}
    published |= {"padding_value": 0.0, "return_attention_mask": False, "sampling_rate": 16_000, "std": 4.5689974}
    yield AudioCase(ast, published, {}, {}, "MIT/ast-finetuned-audioset-10-10-0.4593")
    yield AudioCase(ast, {**published, "max_length": 128}, {}, {}, "MIT/ast-finetuned-speech-commands-v2")
    for normalize, frames, mels in itertools.product((True, False), (50, 128, 300), (64, 80, 128)):
        yield AudioCase(ast, {"do_normalize": normalize, "max_length": frames, "num_mel_bins": mels})
    for mean, std, rate in itertools.product((-6.0, 0.0), (1.0, 3.3), (8000, 16_000, 44_100)):
        yield AudioCase(ast, {"mean": mean, "std": std, "sampling_rate": rate, "max_length": 200})


def clap_cases() -> Iterator[AudioCase]:
    """Yields cases of CLAP."""
    name = "ClapFeatureExtractor"
    base = {"chunk_length_s": 10, "feature_size": 64, "fft_window_size": 1024, "frequency_max": 14_000}
    base |= {"frequency_min": 0, "hop_length": 480, "max_length_s": 10, "n_fft": 1024, "nb_frequency_bins": 513}
    base |= {"nb_max_frames": 1000, "nb_max_samples": 480_000, "padding": "repeatpad", "padding_side": "right"}
    base |= {"padding_value": 0.0, "return_attention_mask": False, "sampling_rate": 48_000, "top_db": None}
    yield AudioCase(name, {**base, "truncation": "fusion"}, {}, {}, "laion/clap-htsat-fused")
    yield AudioCase(name, {**base, "truncation": "rand_trunc"}, {}, {}, "laion/clap-htsat-unfused")
    yield AudioCase(
        name, {**base, "truncation": "rand_trunc", "frequency_min": 50}, {}, {}, "laion/larger_clap_music_and_speech"
    )
    rules = itertools.product(("fusion", "rand_trunc"), ("repeatpad", "repeat", "pad"), (1, 2, 3), (16_000, 24_000))
    for longer, shorter, seconds, rate in rules:
        yield AudioCase(
            name,
            {"truncation": longer, "padding": shorter, "max_length_s": seconds, "sampling_rate": rate}
            | {"frequency_max": rate // 2},
        )
    for longer, window, hop in itertools.product(("fusion", "rand_trunc"), (512, 1000), (160, 320)):
        yield AudioCase(
            name,
            {"truncation": longer, "fft_window_size": window, "hop_length": hop, "sampling_rate": 16_000}
            | {"max_length_s": 1, "frequency_max": 7800, "frequency_min": 100},
        )
    for mels in (40, 128):
        yield AudioCase(name, {"truncation": "rand_trunc", "feature_size": mels, "max_length_s": 2})


def vocoder_cases() -> Iterator[AudioCase]:
    """Yields cases of UnivNet and CLVP."""
    univnet, clvp = "UnivNetFeatureExtractor", "ClvpFeatureExtractor"
    yield AudioCase(univnet, {}, {}, {}, "dg845/univnet-dev")
    for changed in (
        {"do_normalize": True},
        {"num_mel_bins": 80, "fmax": 8000.0},
        {"hop_length": 300, "win_length": 1200, "filter_length": 1200},
        {"win_length": 512, "filter_length": 512, "hop_length": 128},
        {"filter_length": None},
        {"center": True},
        {"compression_factor": 2.0, "compression_clip_val": 1e-3},
        {"mel_floor": 1e-5},
        {"win_function": "hamming_window"},
        {"max_length_s": 1},
        {"return_attention_mask": False},
        {"model_in_channels": 8},
        {"sampling_rate": 16_000, "fmin": 60.0},
        {"padding_value": 0.1},
    ):
        yield AudioCase(univnet, changed)
        yield AudioCase(univnet, changed, {"return_noise": False}, {"noise_channels": 0})
    for options in (
        {"padding": "max_length"},
        {"max_length": 20_000, "padding": "max_length"},
        {"pad_to_multiple_of": 1000},
        {"max_length": 15_000},
    ):
        yield AudioCase(univnet, {}, options, dict(options))

    norms = [float(value) for value in np.linspace(2, 9, 80)]
    yield AudioCase(clvp, {"mel_norms": norms}, {}, {}, "susnato/clvp_dev")
    for changed, (options, fields) in itertools.product(
        (
            {},
            {"n_fft": 512, "hop_length": 128},
            {"feature_size": 40},
            {"default_audio_length": 1, "sampling_rate": 24_000},
            {"mel_norms": norms, "padding_value": 0.1},
        ),
        (
            ({}, {}),
            ({"padding": True}, {"padding": "longest"}),
            ({"max_length": 20_000}, {"max_length": 20_000}),
            ({"max_length": 20_000, "pad_to_multiple_of": 512}, {"max_length": 20_000, "pad_to_multiple_of": 512}),
            ({"padding": True, "max_length": 30_000}, {"padding": "longest", "max_length": 30_000}),
            ({"return_attention_mask": False}, {"returns_mask": False}),
        ),
    ):
        yield AudioCase(clvp, changed, options, fields)


def all_cases() -> list[AudioCase]:
    """Returns every case of these families."""
    made = (wav2vec2_cases, speecht5_cases, codec_cases, usm_cases, kaldi_cases, clap_cases, vocoder_cases)
    return [case for cases in made for case in cases()]
