"""AudioReader returns slices of a full decode, bit for bit, at any position and for every kind of file."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.av import AudioReader, AVLimits, MediaFile, VideoReader, audio_scan
from energon_dali.av.audio_scan import _list_by_table
from energon_dali.errors import ConfigError, DecodeError
from tests.av.corpus import AUDIOS, AudioRecipe, Fraction, audio_file, encode_audio, video_file
from tests.part import sampled

LONG = {
    "pcm16-wav": AudioRecipe("pcm_s16le", "wav", "s16"),
    "flac": AudioRecipe("flac", "flac", "s16"),
    "flac-start-mkv": AudioRecipe("flac", "mkv", "s16", rate=48000, start_seconds=Fraction(9, 4)),
    "mp3": AudioRecipe("libmp3lame", "mp3", "s16p"),
    "aac-m4a": AudioRecipe("aac", "mp4", "fltp"),
    "aac-mkv": AudioRecipe("aac", "mkv", "fltp", rate=48000),
    "opus-webm": AudioRecipe("libopus", "webm", "s16", rate=48000),
    "opus-ogg": AudioRecipe("libopus", "ogg", "s16", rate=48000),
    "vorbis-ogg": AudioRecipe("vorbis", "ogg", "fltp"),
    "vorbis-mkv": AudioRecipe("vorbis", "mkv", "fltp"),
}
LONG_SECONDS = 9
VIDEOS_WITH_SOUND = (
    "h264-aac-mp4",
    "h264-aac-mov",
    "h264-opus-mkv",
    "vp9-opus-webm",
    "mpeg4-mp3-avi",
    "mjpeg-pcm-mov",
    "h264-flac-start-mkv",
)


@cache
def sound_file(name: str) -> bytes:
    """Returns a file by name: short ones, long ones ("long-..."), and videos with audio."""
    if name.startswith("long-"):
        recipe = LONG[name[5:]]
        samples = LONG_SECONDS * recipe.rate + 77
        return encode_audio(AudioRecipe(**{**vars(recipe), "samples": samples}))
    return audio_file(name) if name in AUDIOS else video_file(name)


@cache
def full_decode(name: str) -> tuple[np.ndarray[Any, Any], float]:
    """Returns all samples as PyAV decodes them in order, [channels, samples], and when the first is heard."""
    pieces = []
    with av.open(io.BytesIO(sound_file(name))) as container:
        for frame in container.decode(audio=0):
            if not pieces:
                start = float(frame.pts * frame.time_base)
            array = frame.to_ndarray()
            pieces.append(array if frame.format.is_planar else array.reshape(frame.samples, -1).T)
    return np.concatenate(pieces, axis=1), start


ALL = [*AUDIOS, *(f"long-{name}" for name in LONG), *VIDEOS_WITH_SOUND]


@pytest.mark.parametrize("name", sampled(ALL, 3))
def test_any_range_is_a_slice_of_a_full_decode(name: str) -> None:
    whole, start_seconds = full_decode(name)
    total = whole.shape[1]
    with MediaFile(sound_file(name)) as file:
        reader = AudioReader(file)
        assert (reader.num_samples, reader.channels) == (total, whole.shape[0])
        assert reader.index.start_seconds == pytest.approx(start_seconds, abs=1e-9)
        random = np.random.default_rng(3)
        late = max(0, total - reader.sample_rate)
        ranges = [(0, total), (late, total), (late, late + 100), (total - 1, total + 5), (0, 1), (5, 5)]
        ranges += [tuple(sorted(random.integers(0, total, 2).tolist())) for _ in range(2)]
        ranges += [(start, start + 700) for start in random.integers(0, total - 700, 5).tolist()]
        for start, stop in ranges:
            (clip,) = reader.read_clips([(start, stop)], "samples")
            assert clip is not None
            np.testing.assert_array_equal(clip.samples, whole[:, start:stop])
            assert clip.samples.dtype == whole.dtype
        together = reader.read_clips(ranges, "samples")
        for (start, stop), clip in zip(ranges, together, strict=True):
            assert clip is not None
            np.testing.assert_array_equal(clip.samples, whole[:, start:stop])


SECONDS = st.floats(0, 5, allow_nan=False)


@pytest.mark.parametrize("name", ["pcm16-wav", "flac-start-mkv", "mp3", "opus-webm", "aac-m4a"])
@settings(max_examples=15)
@given(start=SECONDS, length=SECONDS)
def test_seconds_are_the_nearest_samples(name: str, start: float, length: float) -> None:
    whole, start_seconds = full_decode(name)
    with MediaFile(sound_file(name)) as file:
        reader = AudioReader(file)
        rate = reader.sample_rate
        (clip,) = reader.read_clips([(start, start + length)])
        first = int(np.floor((start - start_seconds) * rate + 0.5))
        stop = first + int(np.floor((start + length - start) * rate + 0.5))
        wanted = whole[:, max(first, 0) : max(stop, 0)]
        if wanted.shape[1] == 0:
            assert clip is None or (length * rate < 1 and clip.samples.shape[1] == 0)
            return
        assert clip is not None
        np.testing.assert_array_equal(clip.samples, wanted)
        assert clip.start_seconds == pytest.approx(start_seconds + max(first, 0) / rate, abs=1e-9)
        assert clip.end_seconds == pytest.approx(clip.start_seconds + wanted.shape[1] / rate, abs=1e-9)


@pytest.mark.parametrize("name", ["pcm16-5.1-wav", "long-flac", "mp3-mono", "long-opus-webm"])
@pytest.mark.parametrize(("rate", "channels"), [(16000, None), (None, 1), (44100, 2), (11025, 1)])
def test_resampled_clips_are_slices_of_the_resampled_whole(name: str, rate: int | None, channels: int | None) -> None:
    with MediaFile(sound_file(name)) as file:
        reader = AudioReader(file, sample_rate=rate, channels=channels)
        total = reader.num_samples
        assert total == len(reader.index) * reader.sample_rate // reader.index.rate
        whole = reader.read(0, total)
        assert whole.shape == (channels or reader.index.channels, total)
        assert whole.dtype == reader.index.dtype
        for start in np.random.default_rng(5).integers(0, total - 900, 6).tolist():
            np.testing.assert_array_equal(reader.read(start, start + 900), whole[:, start : start + 900])
        (clip,) = reader.read_clips([(reader.index.start_seconds + 0.28, reader.index.start_seconds + 0.53)])
        assert clip is not None
        first = round(0.28 * reader.sample_rate)
        np.testing.assert_array_equal(clip.samples, whole[:, first : first + clip.samples.shape[1]])
        assert abs(clip.samples.shape[1] - reader.sample_rate / 4) <= 1


def test_a_resampled_tone_stays_a_tone() -> None:
    rate = 44100
    time = np.arange(rate) / rate
    stream = io.BytesIO()
    with av.open(stream, "w", format="wav") as container:
        track = container.add_stream("pcm_f32le", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.sin(2 * np.pi * 440 * time).astype(np.float32)[None], "flt", "mono")
        frame.sample_rate = rate
        container.mux(track.encode(frame))
    with MediaFile(stream.getvalue()) as file:
        found = AudioReader(file, sample_rate=16000).read(0, 16000)[0]
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(found - expected)[100:-100].max() < 1e-3


def test_an_mp4_table_lists_the_packets_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_audio(AudioRecipe(codec="aac", container="mp4", sample_format="fltp"))
    listed: list[bool] = []

    def list_by_table(*arguments: Any) -> bool:
        listed.append(_list_by_table(*arguments))
        return listed[-1]

    monkeypatch.setattr(audio_scan, "_list_by_table", list_by_table)
    quick = AudioReader(MediaFile(data)).index
    monkeypatch.setattr(audio_scan, "_list_by_table", lambda *_: False)
    read = AudioReader(MediaFile(data)).index
    assert listed == [True]
    assert not quick.proven
    for name in ("starts", "pts", "sizes", "span_starts", "span_seconds"):
        assert np.array_equal(getattr(quick, name), getattr(read, name)), name


def test_a_gap_in_the_sound_is_a_gap_in_time() -> None:
    packets: list[Any] = []
    stream = io.BytesIO()
    with av.open(io.BytesIO(audio_file("flac-start-mkv"))) as source, av.open(stream, "w", format="matroska") as target:
        copy = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.size:
                packets.append(packet)
                packet.stream = copy
                if len(packets) > 10:
                    packet.pts, packet.dts = packet.pts + 3000, packet.dts + 3000
                target.mux(packet)
    whole, _ = full_decode("flac-start-mkv")
    with MediaFile(stream.getvalue()) as file:
        reader = AudioReader(file)
        before, inside, after = reader.read_clips([(2.5, 2.75), (4, 4.5), (6.21, 6.5)])
        assert inside is None
        assert before is not None
        assert after is not None
        assert before.start_seconds == 2.5
        assert after.start_seconds == pytest.approx(6.21, abs=1e-4)
        np.testing.assert_array_equal(before.samples, whole[:, 12000:24000])
        first = round((6.21 - 3 - 2.25) * 48000)
        assert any(np.array_equal(after.samples, whole[:, at : at + 13920]) for at in range(first - 24, first + 25))
        (_, gap), (_, end_seconds) = reader.index.span_starts.tolist(), reader.index.span_seconds.tolist()
        into, out, across = reader.read_clips([(2.5, 4), (4, 6.5), (2.5, 6.5)])
        assert into is not None
        assert out is not None
        assert across is not None
        np.testing.assert_array_equal(into.samples, whole[:, 12000:gap])
        assert into.end_seconds == pytest.approx(2.25 + gap / 48000, abs=1e-4)
        assert out.start_seconds == end_seconds
        np.testing.assert_array_equal(out.samples, whole[:, gap : gap + round((6.5 - end_seconds) * 48000)])
        np.testing.assert_array_equal(across.samples, np.concatenate((into.samples, out.samples), axis=1))


def test_wrong_ranges_and_limits_are_named() -> None:
    with MediaFile(sound_file("flac")) as file:
        reader = AudioReader(file)
        with pytest.raises(ConfigError, match=r"\(2, 1\) in seconds"):
            reader.read_clips([(2, 1)])
        with pytest.raises(ConfigError, match="nan"):
            reader.read_clips([(float("nan"), 1)])
        with pytest.raises(ConfigError, match="frames"):
            reader.read_clips([(0, 1)], "frames")  # type: ignore[arg-type]
        with pytest.raises(DecodeError, match="100003"):
            reader.read(200_000, 200_001)
        assert reader.read_clips([(-5, -1), (50, 60)]) == [None, None]
    with pytest.raises(ConfigError, match="audio_channels=9"):
        AudioReader(file, channels=9)
    for limits in (AVLimits(max_audio_samples=1000), AVLimits(max_bytes=5000)):
        with MediaFile(sound_file("flac"), limits=limits) as file, pytest.raises(DecodeError, match="AVLimits"):
            AudioReader(file).read(0, 50_000)
    with MediaFile(sound_file("flac"), limits=AVLimits(max_bytes=50_000)) as file:
        reader = AudioReader(file, sample_rate=1000)
        with pytest.raises(DecodeError, match="AVLimits"):  # what is decoded, before it is resampled
            reader.read(0, 1000)
    with MediaFile(video_file("h264-mp4")) as file, pytest.raises(DecodeError, match="no audio stream"):
        AudioReader(file).read(0, 1)


@pytest.mark.parametrize("name", VIDEOS_WITH_SOUND)
def test_pictures_and_sound_are_read_in_turns(name: str) -> None:
    whole, _ = full_decode(name)
    with MediaFile(video_file(name)) as file:
        video, audio = VideoReader(file), AudioReader(file)
        first = video.read([3, 50])
        np.testing.assert_array_equal(audio.read(0, whole.shape[1]), whole)
        np.testing.assert_array_equal(video.read([50, 3]), first[::-1])
        np.testing.assert_array_equal(audio.read(90_000, 95_000), whole[:, 90_000:95_000])


@pytest.mark.parametrize("name", ["mp3", "opus-ogg"])
def test_files_are_decoded_in_several_threads(name: str) -> None:
    """PyAV keeps what is attached to packets by `id`: numbers, which threads share, would be lost."""
    data, expected = audio_file(name), full_decode(name)[0]

    def decode(_: int) -> bool:
        with MediaFile(data) as file:
            reader = AudioReader(file)
            return bool(np.array_equal(reader.read(0, reader.num_samples), expected))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, range(40)))
