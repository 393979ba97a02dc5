"""LogMel equals transformers' WhisperFeatureExtractor, on waveforms and as the form of the audio of clips."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from energon_dali import ClipAudio, Clips, ConfigError, LogMel, SampleDecoder, VideoClips
from tests.av.corpus import AudioRecipe, VideoRecipe, encode_audio, encode_video

RATE = 16_000
TOLERANCE = 1e-5
"""Features span 2. Both sides sum a few hundred float32 in different orders."""
Waveform = np.ndarray[Any, np.dtype[np.float32]]


def synthetic_speech(seconds: float, rate: int = RATE) -> Waveform:
    """Returns syllables of a pulsed voice through three moving resonances, with noise for consonants and pauses."""
    noise = np.random.default_rng(5).standard_normal(round(seconds * rate))
    time = np.arange(len(noise)) / rate
    pitch = 110 + 25 * np.sin(2 * np.pi * 0.7 * time)
    pulses = np.diff(np.floor(np.cumsum(pitch) / rate), prepend=0.0)
    voiced = np.sin(2 * np.pi * 2.3 * time) > -0.3
    source = np.where(voiced, pulses, 0.02 * noise)
    result = np.zeros_like(source)
    for formant, width, swing in ((600, 80, 250), (1400, 100, 500), (2600, 140, 200)):
        decay = np.exp(-np.pi * width / rate)
        turn = 2 * decay * np.cos(2 * np.pi * (formant + swing * np.sin(2 * np.pi * 1.1 * time)) / rate)
        last = before = 0.0
        for number, value in enumerate(source):
            before, last = last, value + turn[number] * last - decay**2 * before
            result[number] += last
    result[(time % 3) > 2.6] = 0
    return (0.4 * result / np.abs(result).max()).astype(np.float32)


@pytest.fixture(scope="module")
def speech() -> Waveform:
    """Two seconds of speech: espeak-ng's where it is installed, else synthetic."""
    if shutil.which("espeak-ng"):
        spoken = subprocess.run(
            ["espeak-ng", "--stdout", "Whoever decodes less can train more."], check=True, capture_output=True
        ).stdout
        with wave.open(io.BytesIO(spoken)) as file:
            rate, frames = file.getframerate(), file.readframes(file.getnframes())
        samples = np.frombuffer(frames, np.int16).astype(np.float32) / 32768
        times = np.arange(min(2 * RATE, len(samples) * RATE // rate)) / RATE
        return np.interp(times, np.arange(len(samples)) / rate, samples).astype(np.float32)
    return synthetic_speech(2.0)


def expected(extractor: WhisperFeatureExtractor, waveform: Waveform) -> torch.Tensor:
    """Returns what transformers makes of a waveform: float32[num_mels, frames]."""
    made = extractor(waveform, sampling_rate=extractor.sampling_rate, return_tensors="pt")
    return made["input_features"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_length": 3},
        {"feature_size": 128, "chunk_length": 2},
        {"n_fft": 512, "hop_length": 128, "chunk_length": 3},
        {"n_fft": 401, "hop_length": 123, "chunk_length": 1, "padding_value": 0.1},
        {"sampling_rate": 24_000, "chunk_length": 2},
    ],
    ids=["whisper", "large-v3", "powers-of-two", "odd", "24-khz"],
)
def test_features_equal_the_extractors(options: dict[str, Any], speech: Waveform) -> None:
    extractor = WhisperFeatureExtractor(**options)
    features = LogMel.from_processor(extractor)
    assert features.num_samples == extractor.n_samples
    noise = np.random.default_rng(0).standard_normal(7001).astype(np.float32)
    silence_within = np.concatenate([speech[:9000], np.zeros(4000, np.float32), speech[9000:]])
    lengths = (1, features.n_fft + 1, len(speech))
    for waveform in (*(speech[:length] for length in lengths), noise, np.zeros(500, np.float32), silence_within):
        theirs, ours = expected(extractor, waveform), features(waveform)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.shape[1] == features.num_frames(len(waveform))
        assert (ours - theirs).abs().max() <= TOLERANCE


def test_published_whisper_takes_thirty_seconds(speech: Waveform) -> None:
    ours = LogMel()(speech)
    assert ours.shape == (80, 3000)
    assert (ours - expected(WhisperFeatureExtractor(), speech)).abs().max() <= TOLERANCE


def test_a_batch_equals_its_waveforms(speech: Waveform) -> None:
    features = LogMel(duration_seconds=3, dtype="bfloat16")
    batch = torch.from_numpy(np.stack([speech[:20_000], 0.01 * speech[:20_000], 0 * speech[:20_000]]))
    together = features(batch.view(3, 1, -1))
    assert (together.dtype, together.shape) == (torch.bfloat16, (3, 1, 80, 300))
    for waveform, made in zip(batch, together, strict=True):
        assert (features(waveform).float() - made[0].float()).abs().max() <= 0.01  # one step of bfloat16


def test_without_a_duration_features_are_as_long_as_the_waveform(speech: Waveform) -> None:
    features, extractor = LogMel(duration_seconds=None), WhisperFeatureExtractor()
    for length in (201, 16_000, 20_123):
        theirs = extractor(speech[:length], sampling_rate=RATE, padding="longest", return_tensors="pt")
        ours = features(speech[:length])
        assert ours.shape == (80, features.num_frames(length))
        assert (ours - theirs["input_features"][0]).abs().max() <= TOLERANCE
    with pytest.raises(ConfigError, match="200 samples, fewer than half a window"):
        features(speech[:200])


def test_a_folder_and_a_file_are_read_without_the_class(tmp_path: Path) -> None:
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=10)
    extractor.save_pretrained(tmp_path)
    expected_features = LogMel(num_mels=128, duration_seconds=10)
    assert LogMel.from_processor(tmp_path) == LogMel.from_processor(extractor) == expected_features
    nested = {"processor_class": "WhisperProcessor", "feature_extractor": extractor.to_dict()}
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps(nested))
    assert LogMel.from_processor(str(file)) == expected_features
    assert pickle.loads(pickle.dumps(expected_features)) == expected_features


def test_what_would_change_features_is_refused(tmp_path: Path) -> None:
    for options in ({"dither": 0.1}, {"padding_side": "left"}, {"do_normalize": True}, {"fmax": 4000}):
        (name,) = options
        with pytest.raises(ConfigError, match=name):
            LogMel.from_processor(WhisperFeatureExtractor(**options))
    with pytest.raises(ConfigError, match="this is no feature extractor"):
        LogMel.from_processor({"image_processor_type": "ViTImageProcessor"})
    with pytest.raises(ConfigError, match="int is not a feature extractor"):
        LogMel.from_processor(80)
    with pytest.raises(ConfigError, match=r"none of preprocessor_config\.json"):
        LogMel.from_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "Wav2Vec2FeatureExtractor"}')
    with pytest.raises(ConfigError, match="this is Wav2Vec2FeatureExtractor"):
        LogMel.from_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        LogMel.from_processor(tmp_path)
    with pytest.raises(ConfigError, match="hop_length=0"):
        LogMel(hop_length=0)
    with pytest.raises(ConfigError, match=r"duration_seconds=0\.01"):
        LogMel(duration_seconds=0.01)
    with pytest.raises(ConfigError, match="Divide integers"):
        LogMel()(np.zeros(16_000, np.int16))  # type: ignore[arg-type]


def test_clips_have_features_in_place_of_audio() -> None:
    file = encode_audio(AudioRecipe("pcm_s16le", "wav", "s16", rate=44_100, samples=60_000))
    features = LogMel(duration_seconds=2)
    heard, made = (
        SampleDecoder(av_decode=VideoClips(2, clip_duration_seconds=0.5, audio=audio)).decode("wav", file)
        for audio in (ClipAudio(16_000, 1), ClipAudio(features=features))
    )
    assert made.audio is None
    assert made.audio_sample_rate == 16_000
    assert torch.equal(made.audio_timestamps, heard.audio_timestamps)
    assert torch.equal(made.audio_features, features(heard.audio[:, 0]))
    assert made.audio_features.shape == (2, 80, 200)
    batch = Clips.from_samples([made, made])
    assert batch.audio_features is not None
    assert batch.audio_features.shape == (2, 2, 80, 200)


def test_a_video_without_audio_has_features_of_silence() -> None:
    audio = ClipAudio(features=LogMel(duration_seconds=1), missing="silence")
    clips = SampleDecoder(av_decode=VideoClips(1, 2, clip_duration_seconds=0.2, audio=audio)).decode(
        "mkv", encode_video(VideoRecipe("mpeg4", "mkv", frames=8))
    )
    assert torch.equal(clips.audio_features, torch.full((1, 80, 100), -1.5))


def test_features_decide_the_rate_of_clips() -> None:
    assert ClipAudio(features=LogMel()) == ClipAudio(16_000, 1, features=LogMel())
    with pytest.raises(ConfigError, match="sample_rate=48000"):
        ClipAudio(48_000, features=LogMel())
    with pytest.raises(ConfigError, match="channels=2"):
        ClipAudio(channels=2, features=LogMel())
    with pytest.raises(ConfigError, match="Give a LogMel"):
        ClipAudio(features="whisper")  # type: ignore[arg-type]
