from __future__ import annotations

import math
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.av import FrameIndex, MediaFile, VideoReader
from energon_dali.av.frame_index import PacketTable, find_starts
from energon_dali.av.key_packets import find_encoder_note, find_length_size, find_units, is_clean_start, is_hidden
from energon_dali.av.mp4_table import read_sample_tables
from energon_dali.av.video_scan import read_packets
from energon_dali.errors import ConfigError
from tests.av.corpus import VIDEOS, video_file
from tests.av.full_decode import GUESSED_TIMES, decoded


def make_index(pts: list[int], last_duration: int, base: Fraction) -> FrameIndex:
    """Returns an index of frames that are all key frames, each shown until the next."""
    times = np.array(pts, np.int64)
    count = np.arange(len(pts))
    keys = np.ones(len(pts), bool)
    packets = PacketTable(times, times, np.zeros_like(times), count, keys, ~keys)
    return FrameIndex(times, np.append(np.diff(times), last_duration), keys, count, count, base, packets)


@pytest.mark.parametrize("name", VIDEOS)
def test_index_lists_what_a_full_decode_shows_with_its_times(name: str) -> None:
    whole = decoded(name)
    with MediaFile(video_file(name)) as file:
        index = VideoReader(file).index

    assert index.time_base == whole.time_base
    assert (np.diff(index.pts) >= 0).all()
    if name in GUESSED_TIMES:
        assert sorted(whole.pts) == index.pts.tolist() != whole.pts
    else:
        assert index.pts.tolist() == whole.pts
        assert index.durations.tolist() == whole.durations
    assert (index.starts <= index.positions).all()
    assert (index.packets.is_key[index.starts] | (index.starts == 0)).all()


@pytest.mark.parametrize("name", [name for name in VIDEOS if name.endswith(("-mp4", "-mov"))])
def test_sample_tables_say_what_the_packets_say_or_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(video_file(name))
    found = []
    for source in (video_file(name), path):
        with MediaFile(source) as file, file.opened():
            facts = VideoReader(file).facts
            table, packets = read_sample_tables(file, facts), read_packets(file, facts)
        found.append(table is not None)
        for field in fields(PacketTable) if table is not None else ():
            np.testing.assert_array_equal(getattr(table, field.name), getattr(packets, field.name), err_msg=field.name)
    cut_or_repeated = "edit" in name or "fragmented" in name or "negative" in name
    assert found == [not cut_or_repeated] * 2


def test_sample_tables_that_lie_are_not_believed() -> None:
    data = bytearray(video_file("h264-b-mp4"))
    for box, value in ((b"ctts", 8 + 4 + 3), (b"stts", 8 + 4 + 3)):
        lying = bytearray(data)
        lying[lying.index(box) + 4 + value] ^= 1
        with MediaFile(bytes(lying)) as file, file.opened():
            facts = VideoReader(file).facts
            table = read_sample_tables(file, facts)
            if table is not None:
                np.testing.assert_array_equal(table.pts, read_packets(file, facts).pts)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    first=st.integers(-5000, 5000),
    base=st.sampled_from([Fraction(1, 1000), Fraction(1, 90000), Fraction(1001, 30000), Fraction(1, 25)]),
    data=st.data(),
)
def test_seconds_are_the_frames_shown_then(steps: list[int], first: int, base: Fraction, data: st.DataObject) -> None:
    pts = (first + np.cumsum([0, *steps[:-1]])).tolist()
    index = make_index(pts, steps[-1], base)
    end_pts = pts[-1] + steps[-1]
    ticks = st.integers(pts[0] - 2000, end_pts + 2000)
    low, high = sorted((data.draw(ticks), data.draw(ticks)))

    found = index.range_of_seconds(float(low * base), float(high * base))

    if low >= end_pts or high < pts[0]:
        assert found is None
    else:
        ends = [*pts[1:], end_pts]
        shown = [number for number, start in enumerate(pts) if start <= high and ends[number] > low]
        assert found == (shown[0], shown[-1])


@settings(max_examples=100, deadline=None)
@given(number=st.integers(0, 29), rate=st.sampled_from([24, 25, 30, Fraction(30000, 1001), 60]))
def test_the_time_of_a_frame_finds_that_frame_however_it_was_computed(number: int, rate: Fraction) -> None:
    base = 1 / Fraction(rate)
    index = make_index(list(range(30)), 1, base)
    for time in (index.seconds(number)[0], number / float(rate), number * float(base), sum([float(base)] * number)):
        assert index.range_of_seconds(time, time) == (number, number)


def test_a_range_takes_no_array_of_all_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip of a video of hours costs a few comparisons; an array would cost milliseconds per clip."""
    index = make_index(list(range(100, 700_100)), 1, Fraction(1001, 30000))
    times = index.times
    monkeypatch.setattr(FrameIndex, "times", property(lambda _: pytest.fail("all times were computed")))
    for number in (0, 1, 17, 350_000, 699_999):
        assert index.range_of_seconds(times[number], times[number]) == (number, number)
        assert index.frame_at(times[number] - 1e-6) == max(0, number - 1)
    assert index.range_of_seconds(-math.inf, math.inf) == (0, 699_999)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((0.0, math.inf), (0, 4)),
        ((-math.inf, math.inf), (0, 4)),
        ((-1.0, 0.0), (0, 0)),
        ((-2.0, -1.0), None),
        ((0.5, 0.5), (0, 0)),
        ((4.99, 9.0), (4, 4)),
        ((5.0, 9.0), None),
        ((math.inf, math.inf), None),
    ],
)
def test_edges_of_ranges_in_seconds(asked: tuple[float, float], found: tuple[int, int] | None) -> None:
    assert make_index([0, 1, 2, 3, 4], 1, Fraction(1)).range_of_seconds(*asked) == found


@pytest.mark.parametrize(
    ("asked", "found"),
    [((0, 2), (0, 2)), ((3, math.inf), (3, 4)), ((-3, 1), (0, 1)), ((4, 4), (4, 4)), ((5, 9), None), ((-3, -1), None)],
)
def test_ranges_in_frames(asked: tuple[float, float], found: tuple[int, int] | None) -> None:
    assert make_index([0, 1, 2, 3, 4], 1, Fraction(1)).range_of_frames(*asked) == found


@pytest.mark.parametrize("asked", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_reversed_ranges_are_refused(asked: tuple[float, float]) -> None:
    index = make_index([0, 1], 1, Fraction(1))
    with pytest.raises(ConfigError, match="in seconds was given"):
        index.range_of_seconds(*asked)
    with pytest.raises(ConfigError, match="in frames was given"):
        index.range_of_frames(*asked)


def test_a_frame_that_is_not_there_has_no_time() -> None:
    index = make_index([10, 20], 5, Fraction(1, 10))
    assert (index.start_seconds, index.end_seconds, index.seconds(-2)) == (1.0, 2.5, (1.0, 2.0))
    with pytest.raises(ConfigError, match=r"Frame 2 was asked for\. The video shows 2 frames"):
        index.seconds(2)


def test_leading_frames_of_an_open_group_begin_at_the_key_frame_before() -> None:
    # In file order: I0 P3 B1 B2 | I6 B4 B5 P9; frames 4 and 5 refer to P3, which precedes I6.
    order = np.array([0, 3, 1, 2, 6, 4, 5, 9])
    keys = np.isin(order, (0, 6))
    packets = PacketTable(order, order, order, order, keys, ~keys)
    assert find_starts(np.arange(8), order, packets, order).tolist() == [0, 0, 0, 0, 4, 0, 0, 4]


def test_codecs_say_where_decoding_may_begin_and_what_is_hidden() -> None:
    def units(*contents: bytes) -> memoryview:
        return memoryview(b"".join(len(content).to_bytes(4, "big") + content for content in contents))

    recovery, late = b"\x06\x06\x01\x84", b"\x06\x06\x01\x44"
    assert is_clean_start("h264", units(b"\x09\xf0", b"\x65\x00"), 4)
    assert is_clean_start("h264", units(recovery, b"\x41\x00"), 4)
    assert not is_clean_start("h264", units(late, b"\x41\x00"), 4)
    assert not is_clean_start("h264", units(b"\x41\x00"), 4)
    assert is_clean_start("h264", memoryview(b"\0\0\0\1\x09\xf0\0\0\1\x65\x88"), 0)
    assert is_clean_start("hevc", units(b"\x2a\x01\x00"), 4)
    assert not is_clean_start("hevc", units(b"\x02\x01\x00"), 4)
    assert list(find_units(memoryview(b"\0\0\0\x09\x41"), 4)) == []
    damaged = memoryview(b"\0\0\1\0\0\1\x65\0\0\1")
    assert list(find_units(damaged, 0)) == [(6, 7)]
    assert is_clean_start("h264", damaged, 0)
    assert not is_clean_start("hevc", damaged, 0)
    assert find_encoder_note("h264", damaged, 0, None) == b""
    assert not is_clean_start("h264", units(b"\x06\xff\xff\xff"), 4)
    assert (find_length_size("h264", b"\x01\x64\x00\x1f\xff\xe1"), find_length_size("h264", b"\0\0\0\1\x67")) == (4, 0)
    assert (is_hidden("vp8", memoryview(b"\x00\x00")), is_hidden("vp8", memoryview(b"\x10\x00"))) == (True, False)
    assert is_hidden("vp9", memoryview(b"\x84\x00"))
    assert not is_hidden("vp9", memoryview(b"\x86\x00"))
    assert not is_hidden("vp9", memoryview(b"\x88\x00"))
    assert not is_hidden("vp9", memoryview(b"\x84\x00\xc0"))


@pytest.mark.parametrize("kind", ["in order", "jumping", "falling"])
def test_decoding_starts_at_the_last_key_packet_that_is_shown_no_later(kind: str) -> None:
    random = np.random.default_rng(5)
    for count in (1, 2, 7, 64, 300):
        pts = {
            "in order": np.arange(count),
            "jumping": random.permutation(count),
            "falling": np.arange(count)[::-1].copy(),
        }[kind]
        is_key = random.random(count) < 0.4
        nothing = np.zeros(count, np.int64)
        packets = PacketTable(pts, pts, nothing, nothing, is_key, np.zeros(count, bool))
        order = random.permutation(count) if kind != "in order" else pts
        found = find_starts(np.arange(count), order, packets, pts)
        for position in range(count):
            keys = [key for key in range(position + 1) if is_key[key] and pts[key] <= order[position]]
            assert found[position] == (keys[-1] if keys else 0)


def test_times_without_order_take_no_longer() -> None:
    count = 100_000
    pts = np.arange(count)[::-1].copy()
    is_key = np.arange(count) < count // 2
    nothing = np.zeros(count, np.int64)
    packets = PacketTable(pts, pts, nothing, nothing, is_key, np.zeros(count, bool))
    # One by one, this would examine 50,000 keys for each of 50,000 frames.
    assert not find_starts(np.arange(count), pts, packets, pts)[count // 2 :].any()
