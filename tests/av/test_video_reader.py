from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from energon_dali.av import AVLimits, MediaFile, VideoReader
from energon_dali.av.packet_decoder import find_runs
from energon_dali.av.packet_source import DemuxedPackets
from energon_dali.errors import ConfigError, DecodeError
from tests.av.corpus import VIDEOS, VideoRecipe, broken_files, encode_video, video_file
from tests.av.full_decode import decode_fully, decoded
from tests.part import sampled

LONGER = VideoRecipe(frames=90, gop=30, b_frames=3)
HARD = {
    "h264-open-pyramid-mkv": replace(
        LONGER, container="mkv", encoder_options=(("x264-params", "open-gop=1:b-pyramid=normal:ref=5:scenecut=0"),)
    ),
    "h264-open-pyramid-avi": replace(
        LONGER, container="avi", encoder_options=(("x264-params", "open-gop=1:b-pyramid=normal:ref=5"),)
    ),
    "h264-intra-refresh-mkv": replace(LONGER, container="mkv", encoder_options=(("x264-params", "intra-refresh=1"),)),
    "h264-interlaced-mp4": replace(LONGER, encoder_options=(("x264-params", "interlaced=1"),)),
    "h264-ts": replace(LONGER, container="mpegts"),
    "h264-flv": replace(LONGER, container="flv"),
    "hevc-open-mp4": replace(
        LONGER,
        codec="hevc",
        encoder_options=(("x265-params", "log-level=none:pools=none:bframes=4:keyint=30:open-gop=1:scenecut=0"),),
    ),
    "hevc-temporal-layers-mkv": replace(
        LONGER,
        codec="hevc",
        container="mkv",
        encoder_options=(("x265-params", "log-level=none:pools=none:bframes=4:keyint=30:temporal-layers=3"),),
    ),
    "vp8-hidden-webm": replace(
        LONGER,
        codec="vp8",
        container="webm",
        encoder_options=(("lag-in-frames", "16"), ("arnr-maxframes", "7"), ("deadline", "good"), ("cpu-used", "5")),
    ),
    "vp9-hidden-webm": replace(
        LONGER,
        codec="vp9",
        container="webm",
        encoder_options=(("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("deadline", "good"), ("cpu-used", "8")),
    ),
}
"""Videos that reveal a reader that starts decoding in the wrong place, or counts packets."""


def random_sets(count: int, seed: int) -> list[np.ndarray[Any, Any]]:
    """Returns sets of frames: ranges, and numbers in any order with repetitions."""
    rng = np.random.default_rng(seed)
    sets = []
    for _ in range(5):
        first = int(rng.integers(0, count))
        sets.append(np.arange(first, min(count, first + int(rng.integers(1, 12)))))
        sets.append(rng.integers(0, count, int(rng.integers(1, 8))))
    return sets


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", sampled([*VIDEOS, *HARD], 3))
def test_any_set_of_frames_is_that_of_a_full_decode_bit_for_bit(name: str, threads: int) -> None:
    if threads > 1 and (name.startswith("colour") or "-vfr" in name):
        threads = 2
    data = video_file(name) if name in VIDEOS else encode_video(HARD[name])
    whole = decoded(name) if name in VIDEOS else decode_fully(data)

    with MediaFile(data, threads=threads) as file:
        reader = VideoReader(file)
        assert len(reader.index) == len(whole.pts)
        for wanted in random_sets(len(whole.pts), seed=threads):
            np.testing.assert_array_equal(reader.read(wanted), whole.pictures[wanted], err_msg=f"{wanted = }")


@pytest.mark.parametrize("name", ["h264-b-mp4", "vp9-odd-webm", "hevc-10bit-mkv", "mjpeg-odd-avi"])
def test_size_is_that_of_one_conversion_from_the_stored_frame(name: str) -> None:
    whole = decode_fully(video_file(name), (40, 24))

    with MediaFile(video_file(name)) as file:
        np.testing.assert_array_equal(VideoReader(file).read([7, 3, 3], (40, 24)), whole.pictures[[7, 3, 3]])


@pytest.mark.parametrize("name", ["h264-b-mp4", "h264-b-mkv", "mpeg4-b-avi", "vp8-webm", "vp9-mp4"])
def test_a_late_frame_costs_its_group_of_pictures_not_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    take = DemuxedPackets.take

    def counted(packets: DemuxedPackets) -> Any:
        fed.append(packets._next)
        return take(packets)

    monkeypatch.setattr(DemuxedPackets, "take", counted)
    recipe = replace(VIDEOS[name], frames=150)
    with MediaFile(encode_video(recipe)) as file:
        VideoReader(file).read([145])

    assert len(fed) <= 2 * recipe.gop
    assert min(fed) > 100


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_frames_come_as_stored_and_upright_on_demand(angle: int) -> None:
    name = f"h264-rotated-{angle}-mp4"
    stored = decoded(name).pictures[[1, 5]]
    with MediaFile(video_file(name)) as file:
        reader = VideoReader(file)
        plain, upright = reader.read([1, 5]), reader.read([1, 5], upright=True)
        small = reader.read([1], (32, 48), upright=True)

    np.testing.assert_array_equal(plain, stored)
    np.testing.assert_array_equal(upright, np.rot90(stored, -angle // 90, axes=(1, 2)))
    assert small.shape == (1, 48, 32, 3)


def test_no_frames_are_an_empty_array() -> None:
    with MediaFile(video_file("h264-mp4")) as file:
        assert VideoReader(file).read([]).shape == (0, 64, 96, 3)


@pytest.mark.parametrize(
    ("frames", "size", "says"),
    [
        ([40], None, "Frames 40 to 40 were asked for. The video shows 40 frames"),
        ([-1, 3], None, "Give numbers from 0 to 39"),
        ([0], (0, 5), r"The size \(0, 5\) was given"),
    ],
)
def test_impossible_requests_are_refused(frames: list[int], size: Any, says: str) -> None:
    with MediaFile(video_file("h264-mp4")) as file, pytest.raises(ConfigError, match=says):
        VideoReader(file).read(frames, size)


@pytest.mark.parametrize(
    "limits", [AVLimits(max_frames=3), AVLimits(max_bytes=96 * 64 * 3 * 3), AVLimits(max_pixels=96)]
)
def test_limits_are_looked_at_before_memory_is_taken(limits: AVLimits) -> None:
    with MediaFile(video_file("h264-mp4"), limits=limits) as file, pytest.raises(DecodeError, match="AVLimits"):
        VideoReader(file).read([0, 1, 2, 3])


def test_a_file_with_sound_only_has_no_video() -> None:
    from tests.av.corpus import audio_file

    with MediaFile(audio_file("pcm16-wav")) as file, pytest.raises(DecodeError, match=r"no video stream .*audio \(pcm"):
        VideoReader(file).read([0])


@pytest.mark.parametrize("damaged", ["error", "partial"])
@pytest.mark.parametrize("name", broken_files())
def test_files_that_mislead_or_are_not_videos_raise(name: str, damaged: Any) -> None:
    with MediaFile(broken_files()[name]) as file, pytest.raises(DecodeError):
        VideoReader(file, damaged=damaged).read([0])


@pytest.mark.parametrize(
    "name",
    [
        "h264-b-mp4",
        "h264-b-mkv",
        "hevc-b-mp4",
        "vp8-webm",
        "vp9-webm",
        "av1-mp4",
        "mpeg4-b-avi",
        "mjpeg-avi",
        "h264-fragmented-mp4",
    ],
)
def test_cuts_and_flipped_bits_raise_or_give_what_is_there(name: str) -> None:
    data, rng = video_file(name), np.random.default_rng(5)
    outcomes = set()
    for number in range(12):
        broken = bytearray(data[: rng.integers(0, len(data))] if number % 2 else data)
        for place in rng.integers(0, max(1, len(broken)), 0 if number % 2 else 12):
            broken[place] ^= 1 << int(rng.integers(0, 8))
        for damaged in ("error", "partial"):
            with MediaFile(bytes(broken), threads=1) as file:
                try:
                    reader = VideoReader(file, damaged=damaged)  # type: ignore[arg-type]
                    count = len(reader.index)
                    assert reader.read(np.arange(0, count, 5), (32, 32)).shape == (-(-count // 5), 32, 32, 3)
                    outcomes.add((damaged, "frames"))
                except DecodeError:
                    outcomes.add((damaged, "error"))
    assert ("partial", "frames") in outcomes


def test_partial_gives_the_frames_before_and_after_a_hole() -> None:
    data = bytearray(video_file("mjpeg-avi"))
    whole = decoded("mjpeg-avi").pictures
    with MediaFile(bytes(data)) as file:
        packets = VideoReader(file).index.packets
    start, stop = int(packets.offsets[10]), int(packets.offsets[11]) - 8  # A chunk's header has 8 bytes.
    data[start:stop] = bytes(stop - start)

    with MediaFile(bytes(data)) as file:
        with pytest.raises(DecodeError):
            VideoReader(file).read([9, 10, 11])
        np.testing.assert_array_equal(VideoReader(file).read([9, 11]), whole[[9, 11]])
        partial = VideoReader(file, damaged="partial")
        assert len(partial.index) == 39
        np.testing.assert_array_equal(partial.read([9, 10]), whole[[9, 11]])


def test_runs_cover_every_frame_from_its_start_and_join_where_they_touch() -> None:
    assert find_runs(np.array([0, 0, 30, 20, 60]), np.array([5, 3, 30, 29, 61])) == [(0, 5), (20, 30), (60, 61)]
