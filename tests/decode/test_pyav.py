"""Clips have the frames, times and audio of a full decode, in every form, from every CPU decoder."""

from __future__ import annotations

import io
import pickle
from typing import Any

import av
import numpy as np
import pytest
import torch

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.av import AVLimits
from energon_dali.decode import Decoded, DecodeFailure
from energon_dali.decode.clips import ClipAudio, ClipsHandle, VideoClips
from energon_dali.decode.pyav import stage_clips
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.loader.processes.serialization import deserialize, serialize
from energon_dali.samples.batching import generic_batch
from energon_dali.samples.kinds import Clips
from tests.av.corpus import audio_file, broken_files, video_file

FILES = (
    "h264-b-mp4",
    "hevc-b-mkv",
    "vp8-webm",
    "vp9-vfr-webm",
    "av1-mp4",
    "mpeg4-b-avi",
    "mjpeg-odd-avi",
    "h264-vfr-b-mkv",
    "h264-start-mov",
    "hevc-10bit-mkv",
    "h264-edit-middle-mp4",
)


def full_decode(data: bytes) -> tuple[Any, Any]:
    """Returns (times in seconds, uint8[n, H, W, 3]) of all frames, decoded in one pass without threads."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        frames = list(container.decode(stream))
        times = np.array([float(frame.pts * stream.time_base) for frame in frames])
        return times, np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


def clips_of(data: bytes | memoryview, spec: VideoClips, *, name: str = "mp4", seed: int = 0) -> Clips:
    value = SampleDecoder(av_decode=spec).stage(name, data, seed=seed)
    assert isinstance(value, Clips)
    return value


@pytest.mark.parametrize("name", FILES)
def test_frames_and_times_are_those_of_a_full_decode(name: str) -> None:
    data = video_file(name)
    times, pictures = full_decode(data)
    for spec in (
        VideoClips(3, 5, clip_duration_seconds=0.4, sampling="random"),
        VideoClips(2, 4, stride=3),
        VideoClips(2, 3, clip_duration_seconds=100.0),
    ):
        clips = clips_of(data, spec, seed=11)
        assert clips.frames is not None
        assert clips.timestamps is not None
        assert clips.frames.shape == (spec.num_clips, spec.frames_per_clip, 3, *pictures.shape[1:3])
        assert clips.frames.is_contiguous()
        for shown, seconds in zip(clips.frames.flatten(0, 1), clips.timestamps.flatten().tolist(), strict=True):
            number = int(np.abs(times - seconds).argmin())
            assert times[number] == pytest.approx(seconds, abs=1e-9)
            assert (shown.permute(1, 2, 0).numpy() == pictures[number]).all()


def test_forms_of_a_clip() -> None:
    data = video_file("h264-b-mp4")
    plain = clips_of(data, VideoClips(2, 3)).frames
    assert plain is not None
    last = clips_of(data, VideoClips(2, 3, layout="FHWC")).frames
    assert last is not None
    assert torch.equal(last.permute(0, 1, 4, 2, 3), plain)
    for dtype in ("float32", "float16", "bfloat16"):
        scaled = clips_of(data, VideoClips(2, 3, dtype=dtype)).frames  # type: ignore[arg-type]
        assert scaled is not None
        assert torch.equal(scaled, (plain.float() / 255).to(getattr(torch, dtype)))
    small = clips_of(data, VideoClips(2, 3, size=(30, 20))).frames
    shorter = clips_of(data, VideoClips(2, 3, size=20)).frames
    assert small is not None
    assert shorter is not None
    assert (small.shape[2:], shorter.shape[2:]) == ((3, 20, 30), (3, 20, 30))
    assert torch.equal(small, shorter)
    assert (small.float().mean() - plain.float().mean()).abs() < 1


@pytest.mark.parametrize("layout", ["FCHW", "FHWC"])
def test_frames_are_contiguous_in_each_layout(layout: Any) -> None:
    data = video_file("h264-mp4")
    frames = clips_of(data, VideoClips(2, 4, size=(48, 32), layout=layout)).frames
    other = clips_of(data, VideoClips(2, 4, size=(48, 32), layout="FHWC")).frames
    assert frames is not None
    assert other is not None
    assert frames.is_contiguous()
    assert torch.equal(frames, other.movedim(-1, 2) if layout == "FCHW" else other)


@pytest.mark.parametrize("scale", ["fast", "fastest"])
def test_frames_converted_faster_differ_by_a_few_levels(scale: Any) -> None:
    data = video_file("h264-mp4")

    def decode(size: tuple[int, int] | None, scale: Any) -> torch.Tensor:
        spec = VideoClips(2, 4, size=size)
        frames = SampleDecoder(av_decode=spec, decode_scale=scale).decode("mp4", data).frames
        assert isinstance(frames, torch.Tensor)
        return frames.int()

    difference = (decode((40, 24), scale) - decode((40, 24), "exact")).abs()
    assert int(difference.max()) <= 6, difference.max()
    assert float(difference.float().mean()) <= 1.5
    # Nothing changes where nothing becomes smaller.
    for size in (None, (1000, 600)):
        assert torch.equal(decode(size, scale), decode(size, "exact"))


def test_random_clips_differ_by_seed_alone() -> None:
    spec = VideoClips(2, 3, sampling="random")
    times = [clips_of(video_file("h264-b-mp4"), spec, seed=seed).timestamps for seed in (1, 2, 1)]
    assert torch.equal(times[0], times[2])  # type: ignore[arg-type]
    assert not torch.equal(times[0], times[1])  # type: ignore[arg-type]


def test_a_handle_decodes_to_the_same_after_its_way_to_another_process() -> None:
    data = bytearray(video_file("h264-b-mp4"))
    spec = VideoClips(2, 3, clip_duration_seconds=0.5, size=(48, 32))
    handle, file = stage_clips("mp4", memoryview(data), spec, seed=3)
    file.close()
    block = serialize([handle, handle.spec])
    assert [size for _, size in block.extents[:-1]] == [len(data)]  # not copied into the pickle
    memory = memoryview(bytearray(block.size))
    block.write(memory)
    travelled, travelled_spec = deserialize(memory, block.extents)
    assert type(travelled) is ClipsHandle
    assert travelled.spec is travelled_spec
    assert (travelled.codec, travelled.pixel_format, travelled.bit_depth) == ("h264", "yuv420p", 8)
    assert (travelled.frame_count, travelled.width, travelled.height) == (40, 96, 64)
    here, there = handle.decode(), travelled.decode()
    assert torch.equal(here.frames, there.frames)
    assert torch.equal(here.frames, clips_of(bytes(data), spec, seed=3).frames)  # type: ignore[arg-type]


def test_frames_to_decode_are_counted_by_groups_of_pictures() -> None:
    data = video_file("h264-mp4")  # keyframes 0, 12, 24, 36
    for at, frames, count in ((0.0, 1, 1), (0.44, 1, 12), (0.44, 2, 13), (0.48, 2, 2)):
        handle, file = stage_clips("mp4", data, VideoClips(1, frames, stride=1, sampling="at", at=(at,)))
        file.close()
        assert handle.frames_to_decode == count
    handle, file = stage_clips("mp4", data, VideoClips(sampling="at", at=(1.0, 0.04, 1.0), frames_per_clip=1, stride=1))
    file.close()
    assert handle.frames_to_decode == 2 + 2


def test_clips_batch_by_stacking() -> None:
    spec = VideoClips(2, 3, size=(48, 32))
    videos = [clips_of(video_file(name), spec) for name in ("h264-b-mp4", "vp9-webm")]
    batch = generic_batch(videos)
    assert type(batch) is Clips
    assert batch.frames is not None
    assert batch.timestamps is not None
    assert (batch.frames.shape, batch.timestamps.shape) == ((2, 2, 3, 3, 32, 48), (2, 2, 3))
    assert torch.equal(batch.frames[1], videos[1].frames)  # type: ignore[arg-type]
    assert (batch.audio, batch.audio_sample_rate) == (None, None)


@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
def test_a_damaged_file_fails_alone(decoder: type[Any]) -> None:
    made = (
        decoder(av_decode=VideoClips(1, 2), video_decode_device="cpu")
        if decoder is DaliDecoder
        else decoder(av_decode=VideoClips(1, 2))
    )
    for name, data in broken_files().items():
        if name == "mp4-ten-million-frames":
            continue  # what exists can be decoded
        with pytest.raises(DecodeError, match=r"^Part .x\.mp4.: ") as caught:
            made.decode("x.mp4", data)
        assert caught.value.route == "pyav"
    good, file = stage_clips("mp4", video_file("h264-mp4"), VideoClips(1, 2))
    file.close()
    cut = bytearray(good.data)
    cut[len(cut) // 3 :] = bytes(len(cut) - len(cut) // 3)
    bad = pickle.loads(pickle.dumps(good))
    bad.data = bytes(cut)
    outcomes = made.decode_block([good, bad, good])
    assert [type(outcome) for outcome in outcomes] == [Decoded, DecodeFailure, Decoded]
    assert outcomes[0].route == "pyav"


def test_limits_hold_before_memory_is_taken() -> None:
    decoder = SampleDecoder(av_decode=VideoClips(1, 16, size=(4000, 3000)), av_limits=AVLimits(max_bytes=100_000_000))
    with pytest.raises(DecodeError, match="max_bytes=100,000,000"):
        decoder.decode("mp4", video_file("h264-mp4"))


def test_a_file_without_what_is_asked_for() -> None:
    with pytest.raises(DecodeError, match="no video stream"):
        SampleDecoder(av_decode=VideoClips()).decode("wav", audio_file("pcm16-wav"))
    with pytest.raises(DecodeError, match="no audio stream"):
        SampleDecoder(av_decode=VideoClips(clip_duration_seconds=1, audio=True)).decode("mp4", video_file("h264-mp4"))
    silent = VideoClips(2, 3, clip_duration_seconds=0.5, audio=ClipAudio(8000, 1, missing="silence"))
    clips = clips_of(video_file("h264-mp4"), silent)
    assert clips.audio is not None
    assert (clips.audio.shape, int(clips.audio.count_nonzero())) == ((2, 1, 4000), 0)
    assert clips.audio_timestamps is not None
    assert (clips.audio_timestamps[:, 0] == clips.audio_timestamps[:, 1]).all()


AUDIO_FILES = ("pcm16-wav", "f32-wav", "pcm24-wav", "flac", "flac-start-mkv", "mp3", "opus-webm")


def full_sound(data: bytes) -> tuple[float, int, Any]:
    """Returns (start in seconds, rate, float32[C, S] in [-1, 1]) of the whole audio, decoded in one pass."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        frames = list(container.decode(stream))
        channels = stream.codec_context.layout.nb_channels
        parts = [
            part if frame.format.is_planar else part.reshape(-1, channels).T
            for frame in frames
            for part in [frame.to_ndarray()]
        ]
        whole = np.concatenate(parts, axis=1)
        if whole.dtype.kind == "i":
            whole = whole.astype(np.float64) / 2.0 ** (8 * whole.dtype.itemsize - 1)
        return float(frames[0].pts * frames[0].time_base), frames[0].sample_rate, whole.astype(np.float32)


@pytest.mark.parametrize("name", AUDIO_FILES)
def test_sound_is_that_of_a_full_decode(name: str) -> None:
    first, rate, whole = full_sound(audio_file(name))
    spec = VideoClips(3, 1, clip_duration_seconds=0.5, sampling="random", audio=True)
    clips = clips_of(audio_file(name), spec, name="wav", seed=5)
    assert (clips.frames, clips.timestamps, clips.audio_sample_rate) == (None, None, rate)
    assert clips.audio is not None
    assert clips.audio_timestamps is not None
    assert clips.audio.shape == (3, whole.shape[0], round(rate / 2))
    for sound, (start, end) in zip(clips.audio.numpy(), clips.audio_timestamps.tolist(), strict=True):
        place = round((start - first) * rate)
        assert (sound == whole[:, place : place + sound.shape[1]]).all()
        assert end - start == pytest.approx(0.5, abs=2 / rate)


@pytest.mark.parametrize("name", ["h264-aac-mp4", "vp9-opus-webm", "mjpeg-pcm-mov", "h264-flac-start-mkv"])
def test_clips_bring_the_sound_of_their_time(name: str) -> None:
    first, rate, whole = full_sound(video_file(name))
    spec = VideoClips(2, 4, clip_duration_seconds=0.8, audio=True)
    clips = clips_of(video_file(name), spec)
    assert clips.audio is not None
    assert clips.audio_timestamps is not None
    assert clips.timestamps is not None
    for sound, (start, end), shown in zip(
        clips.audio.numpy(), clips.audio_timestamps.tolist(), clips.timestamps.tolist(), strict=True
    ):
        assert shown[0] - 1 / 25 <= start <= shown[0] + 1 / 25 + 0.03  # audio may begin a packet later than video
        place, count = round((start - first) * rate), round((end - start) * rate)
        silent = sound.shape[1] - count
        lead = 0 if (sound[:, :1] != 0).any() else silent
        assert (sound[:, lead : lead + count] == whole[:, place : place + count]).all()
    brought = spec.__class__(2, 4, clip_duration_seconds=0.8, audio=ClipAudio(sample_rate=8000, channels=1))
    resampled = clips_of(video_file(name), brought)
    assert resampled.audio is not None
    assert (resampled.audio.shape, resampled.audio_sample_rate) == ((2, 1, 6400), 8000)
    both = generic_batch([resampled, clips_of(video_file("h264-aac-mp4"), brought)])
    assert (both.audio.shape, both.audio_sample_rate) == ((2, 2, 1, 6400), [8000, 8000])


def audio_with_gap() -> bytes:
    """Returns a file whose audio begins at 2.25 s and has a gap of half a second after 50,688 samples."""
    stream = io.BytesIO()
    with (
        av.open(io.BytesIO(audio_file("flac-start-mkv"))) as source,
        av.open(stream, "w", format="matroska") as target,
    ):
        copy = target.add_stream_from_template(source.streams.audio[0])
        for number, packet in enumerate(source.demux(audio=0)):
            if packet.size:
                packet.stream = copy
                if number >= 11:
                    packet.pts = packet.dts = packet.pts + 500
                target.mux(packet)
    return stream.getvalue()


def test_audio_after_a_gap_is_heard_at_its_time() -> None:
    whole = full_sound(audio_file("flac-start-mkv"))[2]
    at = (3.1, 3.406, 3.5, 3.906)  # before the gap, in it, and after it
    clips = clips_of(
        audio_with_gap(), VideoClips(clip_duration_seconds=0.9, sampling="at", at=at, audio=True), name="wav"
    )
    assert clips.audio is not None
    assert clips.audio_timestamps is not None
    expected = np.zeros((whole.shape[0], 6 * 48000), np.float32)
    expected[:, 108_000 : 108_000 + 50_688] = whole[:, :50_688]
    after = round(3.806 * 48000)
    expected[:, after : after + whole.shape[1] - 50_688] = whole[:, 50_688:]
    for sound, start in zip(clips.audio.numpy(), at, strict=True):
        first = round(start * 48000)
        np.testing.assert_array_equal(sound, expected[:, first : first + sound.shape[1]])
    times = [[3.1, 4.0], [3.806, 4.306], [3.806, 4.4], [3.906, 4.806]]
    np.testing.assert_allclose(clips.audio_timestamps.numpy(), times, atol=1 / 48000)


@pytest.mark.parametrize("rate", [16000, 44100])
def test_resampled_audio_after_a_gap_is_heard_at_its_time(rate: int) -> None:
    spec = VideoClips(
        clip_duration_seconds=1.5, sampling="at", at=(2.75, 3.5), audio=ClipAudio(sample_rate=rate, channels=1)
    )
    clips = clips_of(audio_with_gap(), spec, name="wav")
    assert clips.audio is not None
    assert clips.audio_timestamps is not None
    for sound, start in zip(clips.audio[:, 0].numpy(), (2.75, 3.5), strict=True):
        heard = np.flatnonzero(sound) / rate + start
        before, after = heard[heard < 3.5], heard[heard > 3.5]
        assert after[0] == pytest.approx(3.806, abs=0.002)
        assert not len(before) or before[-1] == pytest.approx(3.306, abs=0.002)
    np.testing.assert_allclose(clips.audio_timestamps.numpy(), [[2.75, 4.25], [3.806, 4.833]], atol=0.002)


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_frames_are_turned_upright_on_request(angle: int) -> None:
    data = video_file(f"h264-rotated-{angle}-mp4")
    stored = clips_of(data, VideoClips(1, 2)).frames
    upright = clips_of(data, VideoClips(1, 2, apply_rotation=True)).frames
    assert stored is not None
    assert upright is not None
    assert torch.equal(upright, torch.rot90(stored, -angle // 90, dims=(3, 4)))
    small = clips_of(data, VideoClips(1, 2, apply_rotation=True, size=32)).frames
    assert small is not None
    assert small.shape[3:] == ((48, 32) if angle % 180 else (32, 48))


def test_a_damaged_video_gives_what_is_there_on_request() -> None:
    data = bytearray(video_file("h264-one-gop-mkv"))
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    last = VideoClips(1, 1, stride=1, sampling="at", at=(0.0,))
    assert clips_of(bytes(data), last).frames is not None
    clips = clips_of(bytes(data), VideoClips(2, 3, damaged="partial"))
    assert clips.timestamps is not None
    assert 0 < clips.timestamps.max() < 1.4  # of 1.6 s


def test_options_reach_the_av_decoder() -> None:
    data = video_file("h264-aac-mp4")
    decoder = SampleDecoder(av_options={"missing": "empty", "sample_rate": 8000, "audio_channels": 1})
    clips = decoder.decode("mp4", data).get_clips([(100, 101)], [(0, 1)])
    assert (clips.video_clips[0].shape[0], clips.audio_clips[0].shape) == (0, (1, 8000))
    for options, words in (({"missin": "empty"}, "missin"), ({"missing": "no"}, "missing='no'"), ([1], "av_options")):
        with pytest.raises(ConfigError, match=words):
            SampleDecoder(av_options=options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="fields of its own"):
        DaliDecoder(av_options={"missing": "empty"}, av_decode=VideoClips())
