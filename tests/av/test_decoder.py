"""AVDecoder: ranges work as documented for every kind of file; it is lazy, picklable, and closes its file."""

from __future__ import annotations

import bisect
import copy
import gc
import io
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.av import AVData, AVDecoder, AVLimits
from energon_dali.av.frame_index import TOLERANCE_SECONDS
from energon_dali.errors import ConfigError, DecodeError
from tests.av.corpus import VIDEOS, audio_file, video_file
from tests.av.full_decode import GUESSED_TIMES, decoded
from tests.decode.sample_images import sample_images
from tests.loader.test_pool import open_files
from tests.part import sampled

Range = tuple[float, float]
SHARES = st.floats(-0.3, 1.4)
"""Ends of ranges as fractions of the video."""


def expected_frames(name: str, asked: Range, unit: str) -> tuple[int, int] | None:
    """Returns (first, last) of the frames in a range, straight from the definition."""
    whole = decoded(name)
    if unit == "frames":
        shown = [number for number in range(len(whole.pts)) if asked[0] <= number <= asked[1]]
        return (shown[0], shown[-1]) if shown else None
    times = [float(pts * whole.time_base) for pts in whole.pts]
    end = float((whole.pts[-1] + whole.durations[-1]) * whole.time_base)
    if asked[1] + TOLERANCE_SECONDS < times[0] or asked[0] >= end:
        return None
    first, last = (max(0, bisect.bisect_right(times, second + TOLERANCE_SECONDS) - 1) for second in asked)
    return first, last


@pytest.mark.parametrize("name", sampled((name for name in VIDEOS if name not in GUESSED_TIMES), 3))
@settings(max_examples=4)
@given(
    ends=st.tuples(st.floats(-0.3, 1.4), st.floats(-0.3, 1.4)).map(sorted), unit=st.sampled_from(["seconds", "frames"])
)
def test_any_range_gives_the_frames_a_full_decode_has_there(name: str, ends: list[float], unit: Any) -> None:
    whole = decoded(name)
    count, start = len(whole.pts), float(whole.pts[0] * whole.time_base)
    length = float((whole.pts[-1] + whole.durations[-1]) * whole.time_base) - start
    if unit == "seconds":
        asked = (start + ends[0] * length, start + ends[1] * length)
    else:
        asked = (math.floor(ends[0] * count), math.floor(ends[1] * count))
    with AVDecoder(video_file(name), missing="empty") as decoder:
        (clip, one), (times, _) = decoder.get_video_clips([asked, (asked[0], asked[0])], unit)
    found = expected_frames(name, asked, unit)
    if found is None:
        assert clip.shape == (0, 3, *whole.pictures.shape[1:3])
        assert unit == "frames" or times == asked
        return
    first, last = found
    np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), whole.pictures[first : last + 1])
    assert times == (
        float(whole.pts[first] * whole.time_base),
        float((whole.pts[last] + whole.durations[last]) * whole.time_base),
    )
    if (asked[0] >= start) if unit == "seconds" else (asked[0] >= 0):
        assert len(one) == 1
        assert torch.equal(one[0], clip[0])


def test_what_the_package_documents_of_a_variable_rate() -> None:
    name = "h264-vfr-b-mp4"
    times = [float(pts * decoded(name).time_base) for pts in decoded(name).pts]
    with AVDecoder(video_file(name)) as decoder:
        clips, stamps = decoder.get_video_clips([(time + 1e-4, time + 1e-4) for time in times])
        assert [stamp[0] for stamp in stamps] == times
        assert all(len(clip) == 1 for clip in clips)


def test_ranges_outside_are_never_dropped() -> None:
    ranges = [(0, 0.1), (50, 60), (1, 1.1)]
    data = video_file("h264-aac-mp4")
    with AVDecoder(data) as decoder:
        with pytest.raises(DecodeError, match=r"video is in the clip range \(50, 60\) in seconds: it has 60 frames"):
            decoder.get_clips(ranges)
        with pytest.raises(DecodeError, match=r'\(500, 600\) in frames.*missing="empty"'):
            decoder.get_video_clips([(500, 600)], "frames")
        with pytest.raises(DecodeError, match=r"audio is in the clip range \(50, 60\)"):
            decoder.get_audio_clips(ranges)
        with pytest.raises(ConfigError, match=r"\(2.0, 1.0\)"):
            decoder.get_video_clips([(2, 1)])
        with pytest.raises(ConfigError, match="video_unit='samples'"):
            decoder.get_video_clips([(1, 2)], "samples")  # type: ignore[arg-type]
    with AVDecoder(data, missing="empty") as decoder:
        found = decoder.get_clips(ranges, ranges, video_out_frame_size=(32, 24))
        assert found.video_shapes == [(3, 3, 24, 32), (0, 3, 24, 32), (3, 3, 24, 32)]
        assert found.audio_shapes == [(2, 4410), (2, 0), (2, 4410)]
        assert found.video_timestamps[1] == found.audio_timestamps[1] == (50, 60)
        assert found.audio_clips[1].dtype == torch.float32
        outside = decoder.get_clips([(90, 95)], [(10**7, 10**8)], "frames", "samples")
        assert outside.video_timestamps == [(2.4, 2.4)]
        assert outside.audio_shapes == [(2, 0)]
        assert decoder.get_clips() == AVData(video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[])
        assert decoder.get_video_clips([]) == ([], [])
    for options in ({"missing": "skip"}, {"damaged": "ignore"}, {"threads": 0}, {"sample_rate": -1}):
        with pytest.raises(ConfigError):
            AVDecoder(data, **options)  # type: ignore[arg-type]


def test_a_late_stream_keeps_its_times() -> None:
    with AVDecoder(video_file("h264-flac-start-mkv")) as decoder:
        (whole,) = decoder.get_video().video_timestamps
        assert whole == (1.6, 4.0)
        found = decoder.get_clips([(1.7, 2)], [(1.7, 2)])
        assert found.video_timestamps == [(1.68, 2.04)]
        assert found.audio_timestamps[0] == pytest.approx((1.7, 2), abs=1e-4)
        assert decoder.get_clips([(0, 2)]).video_timestamps == [(1.6, 2.04)]
        with pytest.raises(DecodeError, match=r"from 1.6 s to 4 s"):
            decoder.get_clips([(0, 1)])


def test_streams_of_a_file() -> None:
    both, video, sound = (
        AVDecoder(data) for data in (video_file("h264-aac-mp4"), video_file("vp9-webm"), audio_file("pcm16-5.1-wav"))
    )
    assert (both.has_video_stream(), both.has_audio_stream()) == (True, True)
    assert (video.has_video_stream(), video.has_audio_stream()) == (True, False)
    assert (sound.has_video_stream(), sound.has_audio_stream()) == (False, True)
    assert (both.get_video_fps(), both.get_audio_samples_per_second()) == (25.0, 44100)
    assert both.get_video_duration() == (2.4, None)
    assert both.get_video_duration(get_frame_count=True) == (2.4, 60)
    assert video.get_audio_duration() is None
    assert sound.get_audio_duration() == 30000 / 48000
    known = sound.get_metadata(get_audio_num_samples=True)
    assert (known.audio_channels, known.audio_sample_rate, known.audio_num_samples) == (6, 48000, 30000)
    assert known.video_width is None
    known = video.get_metadata()
    assert (known.video_width, known.video_height, known.video_num_frames, known.video_fps) == (96, 64, 40, 25.0)
    assert both.get_frames().audio_clips == []  # type: ignore[union-attr]
    assert both.get_frames(video_decode_audio=True).audio_shapes == [(2, 106496)]  # type: ignore[union-attr]
    assert video.get_frames(video_decode_audio=True).video_shapes == [(40, 3, 64, 96)]  # type: ignore[union-attr]
    assert sound.get_frames().audio_shapes == [(6, 30000)]  # type: ignore[union-attr]
    with pytest.raises(DecodeError, match="no audio stream"):
        video.get_video_with_audio()
    with pytest.raises(DecodeError, match="no video stream"):
        sound.get_video()


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_rotation_is_applied_on_demand(angle: int) -> None:
    data = video_file(f"h264-rotated-{angle}-mp4")
    stored, upright = AVDecoder(data), AVDecoder(data, apply_rotation=True)
    turned = torch.rot90(stored.get_video().video_clips[0], -angle // 90, (2, 3))
    assert torch.equal(upright.get_video().video_clips[0], turned)
    known = upright.get_metadata()
    assert (known.video_height, known.video_width) == tuple(turned.shape[2:])
    (clip,), _ = upright.get_video_clips([(0, 1)], "frames", (20, 30))
    assert clip.shape == (2, 3, 30, 20)


def test_audio_can_be_resampled_and_mixed() -> None:
    with AVDecoder(video_file("h264-aac-mp4"), sample_rate=16000, audio_channels=1) as decoder:
        assert decoder.get_audio_samples_per_second() == 16000
        found = decoder.get_clips(None, [(0, 0.5), (1, 1.5)])
        assert found.audio_shapes == [(1, 8000), (1, 8000)]
        assert found.audio_timestamps == [(0, 0.5), (1, 1.5)]
        (clip,), _ = decoder.get_audio_clips([(16000, 24000)], "samples")
        assert torch.equal(clip, found.audio_clips[1])
        assert decoder.get_metadata().audio_sample_rate == 44100


def test_clips_own_their_memory() -> None:
    with AVDecoder(video_file("h264-mp4")) as decoder:
        clips, _ = decoder.get_video_clips([(0, 3), (2, 5)], "frames")
    clips[0].zero_()
    assert clips[1].untyped_storage().nbytes() == 4 * 96 * 64 * 3
    np.testing.assert_array_equal(clips[1].permute(0, 2, 3, 1).numpy(), decoded("h264-mp4").pictures[2:6])


def sources(tmp_path: Path, data: bytes) -> dict[str, Callable[[], Any]]:
    path = tmp_path / "video.bin"  # a meaningless suffix
    path.write_bytes(data)
    return {
        "bytes": lambda: data,
        "bytearray": lambda: bytearray(data),
        "memoryview": lambda: memoryview(bytearray(b"xx" + data))[2:],
        "BytesIO": lambda: io.BytesIO(data),
        "path": lambda: path,
        "string": lambda: str(path),
    }


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "BytesIO", "path", "string"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_before_and_after_use(kind: str, protocol: int, tmp_path: Path) -> None:
    data = video_file("h264-aac-mp4")
    decoder = AVDecoder(sources(tmp_path, data)[kind](), missing="empty", sample_rate=8000)
    wanted = decoder.get_clips([(0.5, 0.7), (9, 9)], [(1, 1.5)])
    for original in (decoder, AVDecoder(sources(tmp_path, data)[kind](), missing="empty", sample_rate=8000)):
        for copied in (pickle.loads(pickle.dumps(original, protocol)), copy.deepcopy(original)):
            found = copied.get_clips([(0.5, 0.7), (9, 9)], [(1, 1.5)])
            assert found.video_timestamps == wanted.video_timestamps
            for one, other in zip(
                found.video_clips + found.audio_clips, wanted.video_clips + wanted.audio_clips, strict=True
            ):
                assert torch.equal(one, other)
            assert copied.stream.read() == data
            copied.close()
    assert decoder.get_frames() is not None
    decoder.close()


def test_bytes_travel_out_of_band() -> None:
    data = video_file("h264-mp4")
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(AVDecoder(data), 5, buffer_callback=buffers.append)
    assert len(pickled) < 2000
    assert [buffer.raw().nbytes for buffer in buffers] == [len(data)]
    assert AVDecoder(data).get_video_duration() == pickle.loads(pickled, buffers=buffers).get_video_duration()


def test_the_file_is_opened_once_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sources(tmp_path, video_file("h264-aac-mp4"))["path"]()
    opened: list[Any] = []
    plain = av.open
    monkeypatch.setattr(av, "open", lambda *given, **named: opened.append(given) or plain(*given, **named))
    gc.collect()  # files that other tests left open must not close in between
    before = open_files()
    decoder = AVDecoder(path)
    assert (opened, open_files() - before) == ([], set())
    for _ in range(3):
        decoder.get_metadata()
        decoder.get_video_clips([(0, 0.2), (1.2, 1.4)])
        decoder.get_audio_clips([(0, 0.2), (1.2, 1.4)])
        decoder.get_video_clips([(5, 5)], "frames")
    assert len(opened) == 1
    assert len(open_files() - before) == 1
    decoder.close()
    assert open_files() - before == set()
    decoder.get_video()
    del decoder
    assert open_files() - before == set()


def test_making_one_loads_nothing() -> None:
    script = (
        "import sys\n"
        "from energon_dali.av import AVDecoder\n"
        "AVDecoder(b'nothing')\n"
        "loaded = [name for name in ('av', 'torch', 'PIL') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_share_a_decoder_and_a_forked_child_has_its_own() -> None:
    decoder = AVDecoder(video_file("h264-aac-mp4"))
    wanted = decoder.get_clips([(0.4, 0.6)], [(0.4, 0.6)])
    found: list[AVData] = []
    threads = [
        threading.Thread(target=lambda: found.append(decoder.get_clips([(0.4, 0.6)], [(0.4, 0.6)]))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for data in found:
        assert torch.equal(data.video_clips[0], wanted.video_clips[0])
        assert torch.equal(data.audio_clips[0], wanted.audio_clips[0])
    script = (
        "import os, sys\n"
        "from energon_dali.av import AVDecoder\n"
        "decoder = AVDecoder(sys.argv[1])\n"
        "wanted = decoder.video.read([5, 20]).tobytes()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if decoder.video.read([5, 20]).tobytes() == wanted else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert decoder.video.read([5, 20]).tobytes() == wanted\n"
    )
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"forked-{os.getpid()}.mp4"
    path.write_bytes(video_file("h264-aac-mp4"))
    try:
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
    finally:
        path.unlink()
    assert done.returncode == 0, done.stderr


def test_a_picture_or_a_text_stream_is_told_apart() -> None:
    with pytest.raises(ConfigError, match="mode 'rb'"):
        AVDecoder(io.StringIO("text"))  # type: ignore[arg-type]
    with AVDecoder(sample_images()["jpeg-420"]) as decoder:
        assert decoder.get_video().video_shapes == [(1, 3, 118, 157)]
    limits = AVLimits(max_frames=5)
    with AVDecoder(video_file("h264-mp4"), limits=limits) as decoder, pytest.raises(DecodeError, match="max_frames=5"):
        decoder.get_video()
