"""Recordings whose header states their length: what it states, and their samples, are those that FFmpeg counts."""

from __future__ import annotations

import numpy as np
import pytest

from energon_dali import AudioFrontEnd
from energon_dali.av import AudioReader, AVLimits, MediaFile
from energon_dali.av.flac_frames import UNKNOWN, _check_sum, count_samples, find_samples
from energon_dali.av.stated_audio import find_stated_audio
from energon_dali.decode.audio_front_ends.audio_decoding import decode_recording, stage_recording
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle, AudioSegments, AudioSpec
from energon_dali.errors import DecodeError
from tests.av.corpus import AudioRecipe, encode_audio

RECIPES = [
    AudioRecipe("flac", "flac", "s16", "mono", 16000, 30_001),
    AudioRecipe("flac", "flac", "s16", "stereo", 44100, 50_000),
    AudioRecipe("flac", "flac", "s32", "mono", 96000, 60_007),
    AudioRecipe("flac", "flac", "s16", "mono", 16000, 100),
    AudioRecipe("pcm_s16le", "wav", "s16", "mono", 16000, 30_001),
    AudioRecipe("pcm_s16le", "wav", "s16", "stereo", 44100, 20_000),
    AudioRecipe("pcm_f32le", "wav", "flt", "mono", 48000, 20_000),
]
FRONT_END = AudioFrontEnd.from_processor({"feature_extractor_type": "WhisperFeatureExtractor"})
MONO = RECIPES[0]


def stage(data: bytes) -> AudioHandle:
    """Returns the handle of a recording."""
    staged, _ = stage_recording("a", data, AudioSpec(FRONT_END))
    assert isinstance(staged, AudioHandle)
    return staged


def with_total(data: bytes, total: int) -> bytes:
    """Returns a FLAC file whose header states another number of samples."""
    stated = int.from_bytes(data[18:26], "big")
    return data[:18] + ((stated >> 36 << 36) | total).to_bytes(8, "big") + data[26:]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.codec}-{recipe.layout}-{recipe.samples}")
@pytest.mark.parametrize("rate", [None, 16000])
def test_stated_samples_are_those_that_are_counted(recipe: AudioRecipe, rate: int | None) -> None:
    data = encode_audio(recipe)
    stated = find_stated_audio(memoryview(data))
    assert stated is not None
    with MediaFile(data) as file:
        counted = AudioReader(file, sample_rate=rate, channels=1)
        index, samples = counted.index, counted.read(0, counted.num_samples)
        assert stated.format == file.format
    found = stated.index
    for name in ("rate", "channels", "layout", "sample_format", "dtype", "start_seconds", "end_seconds"):
        assert getattr(found, name) == getattr(index, name), name
    assert len(found) == len(index)
    with MediaFile(data) as file:
        reader = AudioReader(file, sample_rate=rate, channels=1)
        reader.use_index(found)
        assert reader.num_samples == counted.num_samples
        whole = reader.read(0, reader.num_samples)
        assert whole.dtype == samples.dtype
        assert whole.tobytes() == samples.tobytes()
        assert reader.read(0, 50).tobytes() == np.ascontiguousarray(samples[:, :50]).tobytes()
        assert reader.read(41, 97).tobytes() == np.ascontiguousarray(samples[:, 41:97]).tobytes()


@pytest.mark.parametrize("part", [0.02, 0.3, 0.77, 0.999])
def test_truncated_flac_fails(part: float) -> None:
    data = encode_audio(MONO)
    with pytest.raises(DecodeError):
        decode_recording(stage(data[: int(len(data) * part)]))


def test_a_wrong_length_in_a_header_is_not_believed() -> None:
    data = encode_audio(MONO)
    for total in (0, 1, MONO.samples - 1, MONO.samples + 1, (1 << 36) - 1):
        assert find_stated_audio(memoryview(with_total(data, total))) is None
        assert stage(with_total(data, total)).num_samples == MONO.samples
    wav = bytearray(encode_audio(RECIPES[4]))
    at = wav.index(b"data") + 4
    for size in (0xFFFFFFFF, 0, len(wav)):
        assert find_stated_audio(memoryview(wav[:at] + size.to_bytes(4, "little") + wav[at + 4 :])) is None
    assert find_stated_audio(memoryview(wav)[:-2]) is None


def test_flac_without_a_frame_in_the_middle_fails() -> None:
    data = encode_audio(MONO)
    starts = [at for at in range(len(data)) if find_samples(data[at : at + 16], 1) is not None]
    assert len(starts) > 4
    broken = data[: starts[2]] + data[starts[3] :]
    assert find_stated_audio(memoryview(broken)) is not None
    with pytest.raises(DecodeError):
        decode_recording(stage(broken))


def test_wav_files_with_more_than_samples_are_left_to_ffmpeg() -> None:
    data = encode_audio(RECIPES[4])
    at = data.index(b"data") + 8
    for sign in ("72f81f4e", "fe7f0180"):
        for begin in (at, at + 40_000):  # a packet may follow silence
            assert find_stated_audio(memoryview(data[:begin] + bytes.fromhex(sign) + data[begin + 4 :])) is None
    assert find_stated_audio(memoryview(data + b"data\x02\0\0\0\1\1")) is None
    assert find_stated_audio(memoryview(data + b"LIST\x04\0\0\0INFO")) is not None
    for stop in range(0, at, 3):
        assert find_stated_audio(memoryview(data[:stop])) is None


def test_damaged_headers_state_nothing_or_fail_as_a_decode_error() -> None:
    draw = np.random.default_rng(3)
    outcomes = set()
    for recipe in (MONO, RECIPES[4]):
        data = encode_audio(recipe)
        for _ in range(60):
            broken = bytearray(data)
            broken[int(draw.integers(0, 64))] = int(draw.integers(0, 256))
            assert find_stated_audio(memoryview(broken[: int(draw.integers(0, 80))])) is None
            states = find_stated_audio(memoryview(broken)) is not None
            try:
                decode_recording(stage(bytes(broken)))
                outcomes.add((states, "decoded"))
            except DecodeError:
                outcomes.add((states, "failed"))
    assert {(True, "decoded"), (False, "decoded"), (False, "failed")} <= outcomes


def test_more_samples_than_the_limits_allow_fail() -> None:
    data = encode_audio(RECIPES[4])
    staged, _ = stage_recording("a", data, AudioSpec(FRONT_END), limits=AVLimits(max_audio_samples=1000))
    assert isinstance(staged, AudioHandle)
    with pytest.raises(DecodeError, match="max_audio_samples"):
        decode_recording(staged)


def test_a_few_bytes_of_flac_do_not_state_days_of_audio() -> None:
    """Both check sums and the last frame agree with the header."""
    total = (1 << 36) - 1

    def frame(number: bytes) -> bytes:
        header = b"\xff\xf9\x70\x08" + number + b"\xff\xff"
        return header + bytes([_check_sum(header)])

    first = total - 65536
    number = bytes([0xFE] + [0x80 | first >> shift & 63 for shift in range(30, -1, -6)])
    stated = (1 << 44 | 15 << 36 | total).to_bytes(8, "big")  # 1 Hz, mono, 16 bits
    data = b"fLaC\x80\0\0\x22" + b"\xff\xff" * 2 + bytes(6) + stated + bytes(16) + frame(b"\0") + frame(number)
    assert find_stated_audio(memoryview(data.ljust(70, b"\0"))) is None


@pytest.mark.parametrize("segments", ["first", "all"])
def test_segments_beyond_the_limits_are_not_listed(segments: AudioSegments, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(encode_audio(AudioRecipe("pcm_s16le", "wav", "s16", "mono", 16000, 140_000)))
    data[24:28] = (1).to_bytes(4, "little")  # 1 Hz: 2,240,000,000 samples at 16 kHz
    monkeypatch.setattr(type(FRONT_END), "segments", None)
    if segments == "first":
        assert stage(bytes(data)).num_samples == 2_240_000_000
    else:
        with pytest.raises(DecodeError, match="max_audio_samples"):
            stage_recording("a", bytes(data), AudioSpec(FRONT_END, segments))


def test_segments_of_flac_are_those_of_the_whole() -> None:
    data = encode_audio(AudioRecipe("flac", "flac", "s16", "mono", 16000, 60_000))
    staged, _ = stage_recording("a", data, AudioSpec(FRONT_END, "all", 1.0))
    assert isinstance(staged, list)
    assert [handle.num_samples for handle in staged] == [16000, 16000, 16000, 12000]
    assert all(handle.index is not None and len(handle.index.pts) for handle in staged)


def test_headers_of_frames() -> None:
    data = encode_audio(MONO)
    at = data.rindex(b"\xff\xf8")
    while (found := find_samples(data[at : at + 16], 1)) is None:
        at = data.rindex(b"\xff\xf8", 0, at + 1)
    assert found[1] == count_samples(data[at : at + 13])
    assert find_samples(b"", 1) is None
    assert find_samples(data[at : at + 4] + bytes([data[at + 4] ^ 1]) + data[at + 5 : at + 16], 1) is None
    assert count_samples(b"fLaC" + bytes(20)) == UNKNOWN
