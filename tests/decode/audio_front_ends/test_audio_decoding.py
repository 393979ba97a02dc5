"""Decoders make what an audio front end wants of recordings, whose length hooks see before they are decoded."""

from __future__ import annotations

import io
import pickle
import wave
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import (
    AudioFrontEnd,
    AudioInput,
    AVDecoder,
    ConfigError,
    DaliDecoder,
    DecodeError,
    SampleDecoder,
    VideoClips,
    batch_audio,
    count_tokens,
)
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle
from energon_dali.decode.audio_front_ends.codecs import VibeVoice
from energon_dali.decode.audio_front_ends.speech_llm import Qwen3Omni
from energon_dali.decode.audio_front_ends.whisper import Whisper
from energon_dali.decode.interface import Decoded, DecodeFailure
from tests.av.corpus import audio_file, video_file

FRONT_END = Qwen3Omni(num_mels=40, audio_token_id=7)
FILES = ("pcm16-wav", "flac", "mp3", "aac-adts", "aac-m4a", "opus-ogg", "vorbis-ogg", "alaw-wav")


def whole(name: str, rate: int = 16_000) -> torch.Tensor:
    """Returns all samples of a file at a rate, mixed to one channel: float32[samples]."""
    samples = AVDecoder(audio_file(name), sample_rate=rate, audio_channels=1).get_audio().audio_clips[0][0]
    if samples.is_floating_point():
        return samples.to(torch.float32)
    return samples.to(torch.float32) / (torch.iinfo(samples.dtype).max + 1)


@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
@pytest.mark.parametrize("name", FILES)
def test_recordings_become_audio_inputs(name: str, decoder: Any) -> None:
    options = {} if decoder is SampleDecoder else {"image_decode_device": "cpu", "video_decode_device": "cpu"}
    made = decoder(audio_front_end=FRONT_END, **options)
    suffix = name.rpartition("-")[2].replace("adts", "aac")
    handle = made.stage(suffix, audio_file(name))
    assert isinstance(handle, AudioHandle)
    expected = FRONT_END.render(whole(name))
    assert handle.layout == expected.layout
    assert handle.num_tokens == expected.num_tokens
    (outcome,) = made.decode_block([handle])
    for found in (outcome.value, made.decode(suffix, audio_file(name)), pickle.loads(pickle.dumps(handle)).decode()):
        assert isinstance(found, AudioInput)
        assert found.layout == expected.layout
        assert torch.equal(found.features, expected.features)
        assert torch.equal(found.values, expected.values)


def test_at_the_models_rate_nothing_is_resampled() -> None:
    from io import BytesIO

    import av

    samples = np.random.default_rng(0).integers(-20_000, 20_000, (1, 20_000)).astype(np.int16)
    stream = BytesIO()
    with av.open(stream, "w", format="wav") as container:
        sound = container.add_stream("pcm_s16le", rate=16_000)
        sound.codec_context.layout = "mono"  # type: ignore[assignment]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 16_000
        container.mux(sound.encode(frame))  # type: ignore[attr-defined]
        container.mux(sound.encode(None))  # type: ignore[attr-defined]
    found = SampleDecoder(audio_front_end=FRONT_END).decode("wav", stream.getvalue())
    assert torch.equal(found.features, FRONT_END.render(samples[0].astype(np.float32) / 32768).features)


def test_only_the_used_samples_of_long_recordings_are_decoded() -> None:
    front_end = Whisper(chunk_seconds=1)
    handle = SampleDecoder(audio_front_end=front_end).stage("mp3", audio_file("mp3"))
    assert handle.layout.num_samples > 2 * handle.layout.kept_samples - 1
    assert torch.equal(handle.decode().values, front_end.render(whole("mp3")).values)
    assert handle.decode().duration_seconds == handle.duration_seconds


def test_all_segments_of_a_recording() -> None:
    samples = whole("opus-ogg")
    decoder = SampleDecoder(audio_front_end=FRONT_END, audio_segments="all", audio_seconds=0.5)
    handles = decoder.stage("ogg", audio_file("opus-ogg"))
    expected = FRONT_END.segments(len(samples), 8000)
    assert [(handle.start_sample, handle.start_sample + handle.num_samples) for handle in handles] == expected
    assert count_tokens({"tokens": [1], "audio": handles}) == 1 + sum(handle.num_tokens for handle in handles)
    for found, (start, stop) in zip(decoder.decode("ogg", audio_file("opus-ogg")), expected, strict=True):
        assert torch.equal(found.features, FRONT_END.render(samples[start:stop]).features)


def test_a_random_segment_follows_from_the_seed() -> None:
    samples = whole("flac")
    decoder = DaliDecoder(
        audio_front_end=FRONT_END, audio_segments="random", audio_seconds=0.5, image_decode_device="cpu"
    )
    handles = [decoder.stage("flac", audio_file("flac"), seed=seed) for seed in range(20)]
    starts = [handle.start_sample for handle in handles]
    assert starts == [decoder.stage("flac", audio_file("flac"), seed=seed).start_sample for seed in range(20)]
    assert len(set(starts)) > 15
    assert {handle.num_samples for handle in handles} == {8000}
    assert 0 <= min(starts) <= max(starts) <= len(samples) - 8000
    for handle in handles[:2]:
        found = handle.decode().features
        assert torch.equal(found, FRONT_END.render(samples[handle.start_sample :][:8000]).features)
    first = SampleDecoder(audio_front_end=FRONT_END, audio_seconds=0.5).stage("flac", audio_file("flac"))
    assert (first.start_sample, first.num_samples) == (0, 8000)


def test_parts_with_video_follow_av_decode() -> None:
    file = video_file("h264-aac-mp4")
    assert isinstance(SampleDecoder(audio_front_end=FRONT_END).decode("mp4", file), AVDecoder)
    clips = SampleDecoder(audio_front_end=FRONT_END, av_decode=VideoClips(frames_per_clip=2)).decode("mp4", file)
    assert clips.frames.shape[:2] == (1, 2)


@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
def test_the_audio_of_videos_is_taken_on_request(decoder: Any) -> None:
    options = {} if decoder is SampleDecoder else {"image_decode_device": "cpu", "video_decode_device": "cpu"}
    clips = VideoClips(frames_per_clip=2)
    made = decoder(audio_front_end=FRONT_END, av_decode=clips, audio_of_videos=True, **options)
    file = video_file("h264-aac-mp4")
    found = made.decode("mp4", file)
    samples = AVDecoder(file, sample_rate=16_000, audio_channels=1).get_audio().audio_clips[0][0]
    assert torch.equal(found["audio"].features, FRONT_END.render(samples).features)
    assert torch.equal(found["video"].frames, decoder(av_decode=clips, **options).decode("mp4", file).frames)
    assert made.decode("mp4", video_file("h264-mp4"))["audio"] is None
    assert isinstance(made.decode("flac", audio_file("flac")), AudioInput)


def test_damaged_and_short_recordings_fail_with_the_reason() -> None:
    decoder = SampleDecoder(audio_front_end=FRONT_END)
    content = audio_file("flac")
    with pytest.raises(DecodeError, match="Part 'flac'"):
        decoder.decode("flac", b"nothing of the kind" * 100)
    broken = content[:20_000] + bytes(len(content) - 20_000)
    with pytest.raises(DecodeError):
        decoder.decode("flac", broken)
    with pytest.raises(DecodeError, match="needs more than 600000"):
        SampleDecoder(audio_front_end=Qwen3Omni(n_fft=1_200_000, chunk_seconds=3600)).stage("flac", content)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"audio_front_end": "whisper"}, "is not an audio front end"),
        ({"audio_segments": "all"}, "without audio_front_end"),
        ({"audio_of_videos": True}, "without audio_front_end"),
        ({"audio_front_end": FRONT_END, "audio_segments": "all"}, "takes recordings of any length"),
        ({"audio_front_end": FRONT_END, "audio_segments": "last"}, "first, random, all"),
        ({"audio_front_end": FRONT_END, "audio_seconds": 0}, "greater than 0"),
        ({"audio_front_end": FRONT_END, "audio_seconds": 0.001}, "too short for Qwen3Omni: .* 16 samples"),
        ({"audio_front_end": Whisper(), "audio_segments": "all", "audio_seconds": 31}, "would be lost. .* at most 30"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SampleDecoder(**options)


def test_decoders_say_what_recordings_become() -> None:
    found = SampleDecoder(audio_front_end=FRONT_END, audio_seconds=2.0).config()
    assert found["audio_front_end"]["family"] == "qwen3_omni"
    assert (found["audio_segments"], found["audio_seconds"]) == ("first", 2.0)
    assert SampleDecoder(audio_front_end=FRONT_END).decodes_late


def test_recordings_count_as_their_tokens() -> None:
    handle = SampleDecoder(audio_front_end=FRONT_END).stage("wav", audio_file("pcm16-wav"))
    tokens = handle.num_tokens
    for audio in (handle, handle.decode()):
        assert count_tokens({"tokens": [1, 2], "audio": audio}) == 2 + tokens
        assert count_tokens({"tokens": [1, 7, 2], "audio": audio}) == 2 + tokens
        assert count_tokens({"tokens": [1, *[7] * tokens, 2], "audio": audio}) == 2 + tokens
    # Whisper has no audio in its text.
    plain = SampleDecoder(audio_front_end=Whisper()).stage("wav", audio_file("pcm16-wav"))
    assert count_tokens({"tokens": [1, 2], "audio": plain}) == 2
    unknown = SampleDecoder(audio_front_end=Qwen3Omni()).stage("wav", audio_file("pcm16-wav"))
    with pytest.raises(ConfigError, match=r"'<\|audio_pad\|>'.*audio_token_id="):
        count_tokens({"tokens": [1, 2], "audio": unknown})
    assert isinstance(AudioFrontEnd.from_processor({"feature_extractor_type": "WhisperFeatureExtractor"}), Whisper)


def test_segments_that_would_lose_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="uses 480000 samples of a segment"):
        Whisper().segments(1_000_000, 480_001)
    assert SampleDecoder(audio_front_end=Whisper(), audio_seconds=31).audio_spec is not None  # the extractor cuts


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_duration_is_at_least_0(seconds: float) -> None:
    with pytest.raises(ConfigError, match="Give a duration of at least 0"):
        Whisper().layout_of(seconds)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"audio_token": ""}, r"audio_token=''.*such as <audio>"),
        ({"audio_token_id": "7"}, "audio_token_id='7'.*or None"),
        ({"tokens": 7}, "no such field.*audio_token_id, num_mels"),
    ],
)
def test_wrong_fields_are_explained(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        AudioFrontEnd.from_processor({"feature_extractor_type": "WhisperFeatureExtractor"}, **fields)
    assert "mask_key" not in str(raised.value)  # of the class


def test_batches_explain_what_they_take() -> None:
    audio = FRONT_END.render(np.zeros(4000, np.float32))
    handle = SampleDecoder(audio_front_end=FRONT_END).stage("wav", audio_file("pcm16-wav"))
    for given, words in (
        (audio, "one AudioInput. It takes a list"),
        ([None], "leave it out"),
        ([audio, [audio]], "not both in one call"),
        ([handle], "given an AudioHandle.*not decoded yet"),
    ):
        with pytest.raises(ConfigError, match=words):
            batch_audio(given)  # type: ignore[arg-type]


def pcm(channels: int, rate: int, frames: int) -> bytes:
    """Returns a WAV of 16 bits."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * channels * frames))
    return stream.getvalue()


def test_more_channels_than_can_be_mixed_fail_alone() -> None:
    decoder = SampleDecoder(audio_front_end=FRONT_END)
    handles = [decoder.stage("wav", pcm(channels, 16_000, 5000)) for channels in (9, 2)]
    nine, two = decoder.decode_block(handles)
    assert isinstance(nine, DecodeFailure)
    assert isinstance(two, Decoded)
    assert "cannot bring 9 channels" in nine.reason
    assert two.value.layout.num_samples == 5000


def test_less_than_a_sample_at_the_models_rate_is_no_error_of_the_program() -> None:
    """The loudness of no samples was asked for."""
    found = SampleDecoder(audio_front_end=VibeVoice()).decode("wav", pcm(1, 96_000, 1))
    assert found.layout.num_samples == 0
    assert not found.values.any()
