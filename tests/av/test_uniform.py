"""Clips at equal distances, and the examples of the documentation with the shapes that they state."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from energon_dali.av import AVData, AVDecoder, AVWebdatasetDecoder, get_clips_uniform, get_single_frames_uniform
from energon_dali.errors import ConfigError, DecodeError
from tests.av.corpus import Fraction, VideoRecipe, audio_file, encode_video, video_file
from tests.decode.sample_images import sample_images


@cache
def ten_seconds() -> bytes:
    """Returns a video of 10 seconds with audio."""
    return encode_video(VideoRecipe(frames=250, audio="flac", container="mkv", b_frames=2, gop=50))


def test_two_clips_of_two_seconds() -> None:
    data = AVDecoder(ten_seconds()).get_clips(
        video_clip_ranges=[(0, 2), (4, 6)],
        audio_clip_ranges=[(0, 2), (4, 6)],
        video_unit="seconds",
        audio_unit="seconds",
        video_out_frame_size=(48, 32),
    )
    # The end is included: 2 seconds at 25 frames per second, and the frame shown at the end.
    assert data.video_shapes == [(51, 3, 32, 48), (51, 3, 32, 48)]
    assert data.video_timestamps == [(0.0, 2.04), (4.0, 6.04)]
    assert data.audio_shapes == [(2, 88200), (2, 88200)]
    assert data.audio_timestamps == [(0.0, 2.0), (4.0, 6.0)]
    assert data.video_clips[0].dtype == torch.uint8


def test_five_clips_of_three_seconds_with_audio() -> None:
    data = get_clips_uniform(
        av_decoder=AVDecoder(ten_seconds()), num_clips=5, clip_duration_seconds=3, request_audio=True
    )
    assert data.video_clips == []
    assert data.audio_shapes == [(2, 3 * 44100)] * 5
    assert data.audio_timestamps[0] == (0.0, 3.0)
    assert data.audio_timestamps[-1][1] == pytest.approx(10 + 331 / 44100)


def test_five_clips_of_three_seconds_of_both() -> None:
    decoder = AVDecoder(ten_seconds())
    data = get_clips_uniform(
        av_decoder=decoder, num_clips=5, clip_duration_seconds=3, request_video=True, request_audio=True
    )
    assert [shape[0] for shape in data.video_shapes] == [76, 76, 76, 76, 75]
    assert data.video_timestamps[0][0] == data.audio_timestamps[0][0] == 0.0
    assert data.video_timestamps[-1] == (7.0, 10.0)
    assert data.audio_timestamps[-1] == pytest.approx((7.0, 10.0))
    assert [start for start, _ in data.audio_timestamps] == pytest.approx([0, 1.75, 3.5, 5.25, 7])
    (whole,), _ = decoder.get_video_clips([(0, 249)], "frames")
    for clip, (start, _) in zip(data.video_clips, data.video_timestamps, strict=True):
        first = round(start * 25)
        assert torch.equal(clip, whole[first : first + len(clip)])


def test_whole_video_whole_audio_and_both() -> None:
    decoder = AVDecoder(ten_seconds())
    video, audio, both = decoder.get_video(), decoder.get_audio(), decoder.get_video_with_audio()
    assert (video.video_shapes, video.audio_shapes) == ([(250, 3, 64, 96)], [])
    assert (audio.video_shapes, audio.audio_shapes) == ([], [(2, 441331)])
    assert torch.equal(both.video_clips[0], video.video_clips[0])
    assert torch.equal(both.audio_clips[0], audio.audio_clips[0])
    assert both.video_timestamps == [(0.0, 10.0)]
    assert repr(audio) == f"AVData(video=[] at [] s, audio=[(2, 441331)] at [(0.0, {441331 / 44100})] s)"


def test_single_frames_run_from_the_first_to_the_last() -> None:
    decoder = AVDecoder(ten_seconds())
    frames, starts = get_single_frames_uniform(decoder, 4, video_out_frame_size=(48, 32), return_timestamps=True)
    assert frames.shape == (4, 3, 32, 48)
    assert starts == [0.0, 3.32, 6.64, 9.96]
    assert torch.equal(get_single_frames_uniform(decoder, 4, video_out_frame_size=(48, 32)), frames)
    assert len(get_single_frames_uniform(AVDecoder(video_file("h264-one-frame-mp4")), 3)) == 3


@pytest.mark.parametrize(
    "name", ["h264-start-mp4", "h264-vfr-b-mkv", "h264-edit-middle-mp4", "mpeg4-b-avi", "vp9-start-webm"]
)
def test_clips_lie_in_the_video_whatever_its_times(name: str) -> None:
    decoder = AVDecoder(video_file(name))
    index = decoder.video.index
    clips = get_clips_uniform(decoder, 0.2, 4, request_video=True)
    assert clips.video_timestamps[0][0] == index.start_seconds
    assert clips.video_timestamps[-1][1] == index.end_seconds
    _, starts = get_single_frames_uniform(decoder, 2, return_timestamps=True)
    assert starts[0] == index.start_seconds
    longer = get_clips_uniform(decoder, 60, 2, request_video=True)
    assert [len(clip) for clip in longer.video_clips] == [len(index)] * 2


def test_impossible_requests_are_refused() -> None:
    decoder = AVDecoder(video_file("vp9-webm"))
    with pytest.raises(ConfigError, match="Request video, audio, or both"):
        get_clips_uniform(decoder, 1, 2)
    with pytest.raises(ConfigError, match="num_clips=0"):
        get_clips_uniform(decoder, 1, 0, request_video=True)
    with pytest.raises(ConfigError, match="clip_duration_seconds=-1"):
        get_clips_uniform(decoder, -1, 2, request_video=True)
    with pytest.raises(DecodeError, match="no audio stream"):
        get_clips_uniform(decoder, 1, 2, request_audio=True)


def test_the_handler_of_webdataset() -> None:
    video, sound = video_file("h264-aac-mp4"), audio_file("flac")
    lazy = AVWebdatasetDecoder(video_decode_audio=False)
    assert lazy("left.MP4", video).get_video_duration() == (2.4, None)  # type: ignore[union-attr]
    assert lazy("txt", b"text") is None
    assert lazy("jpg", sample_images()["jpeg-420"]) is None
    whole = AVWebdatasetDecoder(video_decode_audio=True, av_decode="torch")
    found = whole("mp4", video)
    assert isinstance(found, AVData)
    assert (len(found.video_clips), len(found.audio_clips)) == (1, 1)
    found = whole("flac", memoryview(sound))
    assert isinstance(found, AVData)
    assert found.audio_shapes == [(2, 100_003)]
    with AVWebdatasetDecoder(False, "pyav")("mp4", video) as container:  # type: ignore[union-attr]
        assert sum(1 for _ in container.decode(video=0)) == 60  # type: ignore[union-attr]
    resampled = AVWebdatasetDecoder(False, "torch", sample_rate=16000)("wav", audio_file("pcm16-wav"))
    assert resampled.audio_shapes == [(2, 100_003 * 16000 // 44100)]  # type: ignore[union-attr]
    with pytest.raises(DecodeError):
        whole("mp4", b"This is no video")
    with pytest.raises(ConfigError, match="av_decode='numpy'"):
        AVWebdatasetDecoder(False, "numpy")  # type: ignore[arg-type]


def test_frames_of_a_uniform_choice_are_spread_evenly() -> None:
    decoder = AVDecoder(encode_video(VideoRecipe(frames=100, rate=Fraction(10), codec="mpeg4")))
    _, starts = get_single_frames_uniform(decoder, 10, return_timestamps=True)
    np.testing.assert_allclose(np.diff(starts), 1.1, atol=0.051)
