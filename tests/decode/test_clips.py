"""The frames of clips: chosen by presentation time, inside the video, evenly, and reproducibly for a seed."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.decode.clips import ClipAudio, VideoClips, choose_frames
from energon_dali.errors import ConfigError, DecodeError


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Any, float]:
    """Presentation times of the frames of a stream, and its end: with a constant or a variable frame rate, from any
    start."""
    durations = np.array(draw(st.lists(st.integers(1, 3000), min_size=1, max_size=60)), np.int64)
    if draw(st.booleans()):
        durations[:] = durations[0]
    start = draw(st.integers(-2000, 90_000))
    ticks = start + np.concatenate([[0], np.cumsum(durations)])
    base = draw(st.sampled_from([(1, 15_360), (1, 90_000), (1, 1000), (1001, 30_000)]))
    times = ticks * base[0] / base[1]
    return times[:-1], float(times[-1])


def shown_at(seconds: Fraction, times: Any) -> int:
    """Returns the frame shown at a time, by comparing all of them in exact fractions."""
    return max([number for number, time in enumerate(times) if Fraction(time) <= seconds], default=0)


@given(timelines(), st.integers(1, 4), st.integers(1, 9), st.floats(0.01, 20), st.integers(0, 2**62), st.booleans())
def test_frames_are_those_shown_at_even_instants(
    timeline: Any, clips: int, frames: int, duration: float, seed: int, random: bool
) -> None:
    times, end = timeline
    spec = VideoClips(clips, frames, clip_duration_seconds=duration, sampling="random" if random else "uniform")
    chosen, starts = choose_frames(spec, times, end, seed)
    assert chosen.shape == (clips, frames)
    for start, row in zip(starts, chosen, strict=True):
        assert times[0] <= start
        assert start + duration <= end + 1e-6 or start == times[0]
        for number, frame in enumerate(row):
            instant = Fraction(float(start)) + number * Fraction(duration) / frames
            # Sums of floats are exact to a nanosecond; either side of a border is correct.
            around = {shown_at(instant, times), shown_at(instant + Fraction(2, 10**9), times)}
            assert frame in around
    if not random and clips > 1 and duration <= end - times[0]:
        assert starts[0] == times[0]
        assert starts[-1] + duration == pytest.approx(end, abs=1e-6)


@given(timelines(), st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**62), st.booleans())
def test_strides_stay_inside_and_reach_both_ends(
    timeline: Any, clips: int, frames: int, stride: int, seed: int, random: bool
) -> None:
    times, end = timeline
    spec = VideoClips(clips, frames, stride=stride, sampling="random" if random else "uniform")
    chosen, starts = choose_frames(spec, times, end, seed)
    reach = (frames - 1) * stride
    assert (starts == times[chosen[:, 0]]).all()
    for row in chosen:
        assert row[0] + reach < len(times) or row[0] == 0
        assert row.tolist() == [min(row[0] + number * stride, len(times) - 1) for number in range(frames)]
    if not random and clips > 1 and reach < len(times):
        assert (chosen[0, 0], chosen[-1, -1]) == (0, len(times) - 1)


def test_random_clips_follow_their_seed_and_reach_everywhere() -> None:
    times = np.arange(300) / 30
    for spec in (
        VideoClips(3, 4, clip_duration_seconds=1.0, sampling="random"),
        VideoClips(3, 4, stride=8, sampling="random"),
    ):
        drawn = [choose_frames(spec, times, 10.0, seed)[0] for seed in range(400)]
        assert all((choose_frames(spec, times, 10.0, seed)[0] == drawn[seed]).all() for seed in (0, 7, 399))
        assert all((np.diff(clips[:, 0]) >= 0).all() for clips in drawn)
        starts = np.concatenate([clips[:, 0] for clips in drawn])
        assert len(np.unique(starts)) > 200
        assert starts.min() < 3
        assert 267 < starts.max() <= 300 - 25


def test_clips_at_given_seconds() -> None:
    times, end = 1 + np.arange(100) / 30, 1 + 100 / 30
    spec = VideoClips(frames_per_clip=3, clip_duration_seconds=0.3, sampling="at", at=(1.0, 2.1, 4.2))
    assert spec.num_clips == 3
    frames, starts = choose_frames(spec, times, end)
    assert (frames.tolist(), starts.tolist()) == ([[0, 3, 6], [33, 36, 39], [96, 99, 99]], [1.0, 2.1, 4.2])
    spec = VideoClips(frames_per_clip=2, stride=10, sampling="at", at=[1.05])  # type: ignore[arg-type]
    assert choose_frames(spec, times, end)[0].tolist() == [[1, 11]]
    for outside in (0.9, 4.4, 100.0):
        with pytest.raises(DecodeError, match="lasts from 1 s to 4"):
            choose_frames(VideoClips(sampling="at", at=(outside,), stride=1), times, end)


def test_short_videos_repeat_their_last_frame_or_are_refused() -> None:
    times, end = np.arange(5) / 30, 5 / 30
    for how, row in (({"stride": 2}, [0, 2, 4, 4]), ({"clip_duration_seconds": 0.4}, [0, 3, 4, 4])):
        assert choose_frames(VideoClips(1, 4, **how), times, end)[0].tolist() == [row]  # type: ignore[arg-type]
        with pytest.raises(DecodeError, match='short="repeat"'):
            choose_frames(VideoClips(1, 4, short="error", **how), times, end)  # type: ignore[arg-type]
    exact = VideoClips(1, 5, clip_duration_seconds=5 / 30, short="error")
    assert choose_frames(exact, times, end)[0].tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(DecodeError, match="no frames"):
        choose_frames(VideoClips(), times[:0], 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_clips": 0}, "num_clips=0"),
        ({"frames_per_clip": True}, "frames_per_clip=True"),
        ({"stride": 0}, "stride=0"),
        ({"stride": 2, "clip_duration_seconds": 1.0}, "one of the two"),
        ({"clip_duration_seconds": float("nan")}, "greater than 0"),
        ({"clip_duration_seconds": -1}, "greater than 0"),
        ({"sampling": "middle"}, "uniform, random, at"),
        ({"sampling": "at"}, "start of each clip"),
        ({"at": (1.0,)}, "start of each clip"),
        ({"sampling": "at", "at": (float("inf"),)}, "finite"),
        ({"sampling": "at", "at": (1.0, 2.0), "num_clips": 3}, "Leave num_clips out"),
        ({"size": (224, 0)}, "shorter side"),
        ({"size": 22.4}, "shorter side"),
        ({"dtype": "int8"}, "float16"),
        ({"layout": "CFHW"}, "FCHW, FHWC"),
        ({"short": "black"}, "repeat, error"),
        ({"audio": True}, "clip_duration_seconds"),
        ({"audio": "yes"}, "ClipAudio"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VideoClips(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"sample_rate": 0},
        {"channels": 1.5},
        {"duration_seconds": 0},
        {"missing": "no"},
        {"missing": "silence", "channels": 1},
    ],
)
def test_what_audio_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ClipAudio"):
        ClipAudio(**options)


def test_declaration_travels_and_tells_sizes() -> None:
    spec = VideoClips(2, 8, clip_duration_seconds=2, size=224, audio=ClipAudio(16_000, 1))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    assert spec.output_size(640, 360) == (398, 224)
    assert spec.output_size(360, 641) == (224, 398)
    assert VideoClips(size=(112, 64)).output_size(640, 360) == (112, 64)
    assert VideoClips().output_size(640, 360) == (640, 360)
    assert spec.audio_seconds == 2


def test_a_single_frame_without_a_duration_can_be_asked_for() -> None:
    spec = VideoClips(1, 1, stride=1, sampling="at", at=(3.0,))
    frames, starts = choose_frames(spec, np.array([3.0]), 3.0)
    assert (frames.tolist(), starts.tolist()) == ([[0]], [3.0])
