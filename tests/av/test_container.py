from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from energon_dali.av import AVDecoder, AVLimits, AVWebdatasetDecoder, MediaFile, VideoReader
from energon_dali.av.container import MAX_THREADS, count_threads
from energon_dali.av.media_source import MemoryReader
from energon_dali.av.mp4_screen import screen_mp4
from energon_dali.decode.media_filter import describe_av
from energon_dali.demuxers import tag_options
from energon_dali.errors import ConfigError, DecodeError, DeviceError
from tests.av.corpus import broken_files, video_file
from tests.av.full_decode import decoded

NAME = "h264-b-mp4"
WANTED = [30, 2, 17]


def read(file: MediaFile) -> np.ndarray[Any, Any]:
    return VideoReader(file).read(WANTED)


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "BytesIO", "stream", "str", "Path"])
def test_every_source_gives_the_same_frames(kind: str, tmp_path: Path) -> None:
    data = video_file(NAME)
    path = tmp_path / "video.mp4"
    path.write_bytes(data)
    with open(path, "rb") as stream:
        stream.seek(100)
        source = {
            "bytes": data,
            "bytearray": bytearray(data),
            "memoryview": memoryview(b"xx" + data)[2:],
            "BytesIO": io.BytesIO(data),
            "stream": stream,
            "str": str(path),
            "Path": path,
        }[kind]
        with MediaFile(source) as file:
            assert file.format == ""
            np.testing.assert_array_equal(read(file), decoded(NAME).pictures[WANTED])
            assert file.format.startswith("mov")


@pytest.mark.parametrize(
    ("source", "says"),
    [(3, "given as int"), (io.StringIO("text"), "mode 'rb'"), (memoryview(bytes(100))[::2], "memoryview with gaps")],
)
def test_other_sources_are_refused(source: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MediaFile(source)


def test_a_stream_without_seek_is_refused() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading, "rb") as stream, pytest.raises(ConfigError, match="without seek"):
        MediaFile(stream)


def test_nothing_is_opened_before_it_is_needed_and_everything_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(video_file(NAME))

    def is_open() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(os.path.realpath(link) == str(path) for link in links)

    file = MediaFile(path)
    assert not is_open()
    read(file)
    assert is_open()
    file.close()
    assert not is_open()
    np.testing.assert_array_equal(read(file), decoded(NAME).pictures[WANTED])
    assert is_open()
    del file
    gc.collect()
    assert not is_open()


def test_pickling_carries_memory_out_of_band_and_no_container() -> None:
    block = bytearray(b"header" + video_file(NAME))
    file = MediaFile(memoryview(block)[6:], limits=AVLimits(max_frames=9), threads=1)
    read(file)
    buffers: list[pickle.PickleBuffer] = []

    small = pickle.dumps(file, protocol=5, buffer_callback=buffers.append)
    there = pickle.loads(small, buffers=buffers)
    inband = pickle.loads(pickle.dumps(file, protocol=4))

    assert len(small) < 500
    assert np.shares_memory(np.frombuffer(there.source, np.uint8), np.frombuffer(block, np.uint8))
    for other in (there, inband):
        assert (other.limits, other.threads, other.format) == (file.limits, 1, "")
        np.testing.assert_array_equal(read(other), decoded(NAME).pictures[WANTED])


def test_threads_of_this_process_share_a_file() -> None:
    results: dict[int, Any] = {}
    with MediaFile(video_file(NAME)) as file:

        def work(number: int) -> None:
            wanted = [number, 39 - number]
            results[number] = [VideoReader(file).read(wanted) for _ in range(5)]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    for number, reads in results.items():
        for pictures in reads:
            np.testing.assert_array_equal(pictures, decoded(NAME).pictures[[number, 39 - number]])
    assert len(results) == 4


def _read_in_child(file: MediaFile, answer: Any) -> None:
    answer.send((count_threads(None), read(file).tobytes()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_the_file_again_and_decodes_in_one_thread() -> None:
    with MediaFile(video_file(NAME), threads=3) as file:
        here = read(file)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(file, theirs))
        child.start()
        assert ours.poll(30)
        threads, pictures = ours.recv()
        child.join(30)
        assert child.exitcode == 0
        assert (threads, pictures) == (1, here.tobytes())
        np.testing.assert_array_equal(read(file), here)


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr("multiprocessing.parent_process", lambda: None)
    monkeypatch.setattr("energon_dali.av.container._forked", False)
    assert (count_threads(5), count_threads(None)) == (5, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert count_threads(None) == MAX_THREADS
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= count_threads(None) <= MAX_THREADS
    with pytest.raises(ConfigError, match="threads=0 was given"):
        MediaFile(b"", threads=0)


def test_facts_are_known_without_decoding() -> None:
    with MediaFile(video_file("h264-aac-mp4")) as file:
        video, sound = file.find_stream("video"), file.find_stream("audio")
        assert file.find_stream("subtitle") is None
    assert video is not None
    assert sound is not None
    assert (video.codec, video.width, video.height, video.pixel_format, video.bit_depth, video.frames) == (
        "h264",
        96,
        64,
        "yuv420p",
        8,
        60,
    )
    assert video.average_rate == 25
    assert video.duration_seconds == pytest.approx(2.4, abs=0.01)
    assert (sound.codec, sound.sample_rate, sound.channels, sound.layout) == ("aac", 44100, 2, "stereo")
    with MediaFile(video_file("av1-10bit-mp4")) as file:
        facts = file.find_stream("video")
    assert facts is not None
    assert (facts.codec, facts.bit_depth) == ("av1", 10)


@pytest.mark.parametrize("name", broken_files())
def test_files_that_are_not_media_cannot_be_opened_or_hold_no_frame(name: str) -> None:
    with MediaFile(broken_files()[name]) as file, pytest.raises(DecodeError) as caught:
        VideoReader(file).read([0])
    assert caught.value.route in ("pyav", "screen")


def test_a_claim_of_ten_million_frames_is_refused_before_its_index_is_made(tmp_path: Path) -> None:
    path = tmp_path / "lie.mp4"
    path.write_bytes(broken_files()["mp4-ten-million-frames"])
    with MediaFile(path) as file, pytest.raises(DecodeError, match="claims 10,000,000 samples"):
        read(file)
    with pytest.raises(DecodeError, match=r"claims 10,000,000 samples of at least 10,000,000 bytes"):
        screen_mp4(memoryview(broken_files()["mp4-ten-million-frames"]))
    screen_mp4(memoryview(video_file(NAME)))
    screen_mp4(memoryview(video_file("h264-fragmented-mp4")))
    screen_mp4(memoryview(b""))


def test_claims_of_many_boxes_are_added_up() -> None:
    run = struct.pack(">I4sIII", 20, b"trun", 0, 10_000, 0)
    table = struct.pack(">I4sIII", 20, b"stsz", 0, 1, 10_000)
    for boxes in (run * 20, table * 20, run * 10 + table * 10):
        data = struct.pack(">I4s", len(boxes) + 8, b"moof") + boxes
        with pytest.raises(DecodeError, match=r"claims 110,000 samples"):
            screen_mp4(memoryview(data + bytes(100_000)))


def test_every_way_to_a_video_screens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = broken_files()["mp4-ten-million-frames"]
    path = tmp_path / "lie.mp4"
    path.write_bytes(data)
    opened: list[object] = []
    monkeypatch.setattr("av.open", lambda *_, **__: opened.append(data))
    for size in (-1, 0):
        with (
            path.open("rb", size) as stream,
            MediaFile(stream) as file,
            pytest.raises(DecodeError, match="claims 10,0"),
        ):
            read(file)
    with pytest.raises(DecodeError, match="claims 10,000,000"):
        AVWebdatasetDecoder(False, "pyav")("mp4", data)
    assert describe_av(data) is None
    assert not opened


def test_time_is_limited() -> None:
    with MediaFile(video_file(NAME), limits=AVLimits(max_seconds=1e-9)) as file, pytest.raises(DecodeError):
        read(file)


@pytest.mark.parametrize("limit", [{"max_frames": 0}, {"max_bytes": -1}, {"max_seconds": 0.0}])
def test_limits_are_positive(limit: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="would refuse every file"):
        AVLimits(**limit)


def test_the_memory_reader_is_a_file() -> None:
    data = bytes(range(100))
    reader, file = MemoryReader(memoryview(data)), io.BytesIO(data)
    for action, *arguments in (
        ("read", 10),
        ("seek", 5, 1),
        ("read", 7),
        ("seek", -3, 2),
        ("read", 10),
        ("tell",),
        ("seek", 200),
        ("read", 4),
        ("tell",),
        ("seek", 90),
        ("read",),
    ):
        assert getattr(reader, action)(*arguments) == getattr(file, action)(*arguments)


def test_tags_that_are_not_utf8_fail_no_file() -> None:
    data = video_file("vp9-webm")
    tag = b"Lavf"  # of the program that wrote it
    assert tag in data
    with MediaFile(data.replace(tag, b"\xff\xfe\xe9\xff")) as file, MediaFile(data) as untouched:
        assert np.array_equal(VideoReader(file).read([0]), VideoReader(untouched).read([0]))


@pytest.mark.parametrize(("version", "options"), [("18.1.0", {"metadata_errors": "ignore"}), ("19.0.2", {})])
def test_the_option_that_pyav_19_took_away_is_given_to_older_ones(
    version: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(av, "__version__", version)
    assert tag_options() == options


def test_a_pyav_that_is_missing_or_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    data = video_file("vp9-webm")
    monkeypatch.setattr(av, "__version__", "17.0.1")
    with pytest.raises(DeviceError, match=r"PyAV 17\.1 or 18, and this is PyAV 17\.0\.1\. .*'av>=17\.1,<19'"):
        AVDecoder(data).get_video()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DeviceError, match=r"need PyAV 17\.1 or 18, and it cannot be imported"):
        AVDecoder(data).get_video()
