"""Mistakes of users are refused at once, with an explanation; numbers of any library are accepted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import SampleDecoder
from energon_dali.av import AVDecoder, AVLimits, get_clips_uniform, get_single_frames_uniform
from energon_dali.decode.clips import ClipAudio, VideoClips
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.samples.batching import generic_batch
from tests.av.corpus import video_file

NO_RANGES: list[Any] = [(0, 1), (0.0, 1.0), [0.5], [("0", "1")], "01", [(None, 1)], [(0, 1, 2)], [(1j, 2)], 5, None]


@pytest.mark.parametrize("ranges", NO_RANGES, ids=repr)
def test_what_is_not_a_list_of_pairs_is_refused(ranges: Any) -> None:
    with AVDecoder(video_file("h264-aac-mp4")) as decoder:
        with pytest.raises(ConfigError, match=r"Give a list such as \[\(0, 2\), \(4, 6\)\]"):
            decoder.get_video_clips(ranges)
        with pytest.raises(ConfigError, match="pairs of numbers"):
            decoder.get_audio_clips(ranges)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"FFmpeg cannot read .*lost\.mp4: No such file"):
        AVDecoder(tmp_path / "lost.mp4").get_video()
    with pytest.raises(DecodeError, match="FFmpeg cannot read it: Invalid data"):
        AVDecoder(b"no video" * 100).get_video()


def test_numbers_of_any_library_make_ranges_and_sizes() -> None:
    with AVDecoder(video_file("h264-aac-mp4"), missing="empty") as decoder:
        wanted = decoder.get_clips([(0, 1)], [(0, 1)])
        for ranges in (np.array([[0, 1]]), torch.tensor([[0.0, 1.0]]), [(np.float32(0), np.int64(1))], iter([[0, 1]])):
            found, times = decoder.get_video_clips(ranges)  # type: ignore[arg-type]
            assert torch.equal(found[0], wanted.video_clips[0])
            assert times == wanted.video_timestamps
        small, _ = decoder.get_video_clips([(0, 0)], "frames", (np.int64(20), torch.tensor(10)))  # type: ignore[arg-type]
        assert small[0].shape == (1, 3, 10, 20)
        low, high = (-math.inf, -math.inf), (math.inf, math.inf)
        both = decoder.get_clips([low, high], [low, high], "frames", "samples")
        assert [len(clip) for clip in both.video_clips] == [0, 0]
        assert both.video_timestamps == [(0.0, 0.0), (2.4, 2.4)]
        assert [clip.shape for clip in both.audio_clips] == [(2, 0), (2, 0)]
        size: Any
        for size in ((5,), 5, (5.5, 6), ("a", 2), (0, 4), (), torch.tensor([5.0, 6.0])):
            with pytest.raises(ConfigError, match="two whole numbers"):
                decoder.get_video_clips([(0, 0)], "frames", size)


def test_options_that_cannot_work_are_refused_where_they_are_given() -> None:
    data = video_file("h264-aac-mp4")
    for options in (
        {"threads": "2"},
        {"threads": 1.5},
        {"sample_rate": "16000"},
        {"sample_rate": 16000.0},
        {"audio_channels": 1.5},
        {"limits": {"max_frames": 3}},
    ):
        with pytest.raises(ConfigError, match="was given"):
            AVDecoder(data, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_frames='3'"):
        AVLimits(max_frames="3")  # type: ignore[arg-type]
    decoder = AVDecoder(data)
    duration: Any
    clips: Any
    for duration, clips in ((1, 1.5), ("1", 2), (0.5, "2"), (None, 1), (math.nan, 2), (1, 0)):
        with pytest.raises(ConfigError, match="at least one clip"):
            get_clips_uniform(decoder, duration, clips, request_video=True)
    with pytest.raises(ConfigError, match="at least one clip"):
        get_single_frames_uniform(decoder, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="apply_rotation='yes'"):
        VideoClips(apply_rotation="yes")  # type: ignore[arg-type]


def test_declarations_take_numbers_of_any_library_and_are_limited() -> None:
    spec = VideoClips(
        frames_per_clip=np.int64(3),
        clip_duration_seconds=np.float32(0.5),
        sampling="at",  # type: ignore[arg-type]
        at=np.array([0.0, 0.5]),
        size=(np.int32(32), torch.tensor(24)),  # type: ignore[arg-type]
    )
    assert spec == VideoClips(2, 3, clip_duration_seconds=0.5, sampling="at", at=(0.0, 0.5), size=(32, 24))
    assert type(spec.num_clips) is type(spec.frames_per_clip) is int
    data = video_file("h264-aac-mp4")
    with pytest.raises(DecodeError, match=r"1,000,000,000 frames, more than AVLimits\(max_frames=1,000,000\)"):
        SampleDecoder(av_decode=VideoClips(num_clips=1_000_000_000, frames_per_clip=1)).decode("mp4", data)
    for audio in (ClipAudio(duration_seconds=1e9), ClipAudio(2**40, 1, 1.0), ClipAudio(2**40, 1, 1.0, "silence")):
        for name in ("h264-aac-mp4", "h264-mp4")[: 1 + (audio.missing == "silence")]:
            with pytest.raises(DecodeError, match="max_audio_samples"):
                SampleDecoder(av_decode=VideoClips(1, 1, audio=audio)).decode("mp4", video_file(name))


def test_a_stream_that_was_closed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(video_file("h264-mp4"))
    with path.open("rb") as stream:
        decoder = AVDecoder(stream)
    for use in (decoder.get_video, lambda: decoder.stream):
        with pytest.raises(ConfigError, match="is closed"):
            use()
    decoder = AVDecoder(path)
    decoder.get_video_duration()
    decoder.close()
    path.unlink()
    with pytest.raises(DecodeError, match="No such file"):
        decoder.get_video()


def test_a_batch_of_clips_can_be_looked_at() -> None:
    with AVDecoder(video_file("h264-aac-mp4")) as decoder:
        batch = generic_batch([decoder.get_clips([(0, 0.1)]), decoder.get_clips([(0, 0.1), (1, 1.5)])])
    assert batch.video_shapes == [[(3, 3, 64, 96)], [(3, 3, 64, 96), (13, 3, 64, 96)]]
    assert "(13, 3, 64, 96)" in repr(batch)
