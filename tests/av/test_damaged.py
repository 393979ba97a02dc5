"""Damaged files give a clear error or what can be decoded, within limits; they never hang or crash."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import av
import pytest
import torch

from energon_dali.av import AVDecoder, AVLimits
from energon_dali.av.container import demux_stream
from energon_dali.errors import DecodeError
from tests.av.corpus import FUZZED, audio_file, broken_files, video_file
from tests.av.mp4_boxes import with_claimed_frames
from tests.av.test_odd_files import encode_frames, packed_avi

ROOT = Path(__file__).resolve().parent.parent.parent
FUZZER = """
import faulthandler, resource, sys, time
from random import Random
import torch
from energon_dali.av import AVDecoder, AVLimits, get_clips_uniform
from energon_dali.errors import DecodeError
from tests.av.corpus import AUDIOS, audio_file, video_file
from tests.decode.mutations import mutate

torch.set_num_threads(1)
held = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30),) * 2)
limits = AVLimits(max_bytes=1 << 26, max_frames=1000, max_pixels=1 << 20, max_seconds=5)
slowest, outcomes = 0.0, {"data": 0, "error": 0}
for name in sys.argv[2:]:
    data = audio_file(name) if name in AUDIOS else video_file(name)
    random = Random(name)
    for number in range(int(sys.argv[1])):
        if number % 2:
            broken = mutate(data, random)
        else:
            broken = bytearray(data[: random.randrange(len(data))] if number % 4 else data)
            for _ in range(random.choice((1, 10, 100))):
                if broken:
                    broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
        print(name, number, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(60, exit=True)  # a hang says where
        damaged = random.choice(("error", "partial"))
        start = time.monotonic()
        with AVDecoder(bytes(broken), damaged=damaged, missing="empty", threads=random.choice((1, 2)),
                       limits=limits) as one:
            for call in (one.get_metadata, lambda: one.get_frames(True), lambda: one.get_clips([(0.5, 0.6)]),
                         lambda: get_clips_uniform(one, 0.1, 2, request_audio=True)):
                try:
                    call()
                    outcomes["data"] += 1
                except DecodeError as error:
                    assert error.route in ("pyav", "screen"), error.route
                    outcomes["error"] += 1
        slowest = max(slowest, time.monotonic() - start)
print(outcomes["data"], outcomes["error"], round(slowest, 1))
"""


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (6, FUZZED),
        pytest.param(13, FUZZED[::2], marks=pytest.mark.sweep),
        pytest.param(13, FUZZED[1::2], marks=pytest.mark.sweep),
    ],
    ids=["sample", "even", "odd"],
)
def test_no_mutation_crashes_hangs_or_takes_memory(files: int, names: tuple[str, ...], warm_python: str) -> None:
    done = subprocess.run(
        [warm_python, "-W", "error", "-c", FUZZER, str(files), *names],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    data, errors, _ = done.stdout.split()
    assert int(data) > 100
    assert int(errors) > 100


@pytest.mark.parametrize("damaged", ["error", "partial"])
@pytest.mark.parametrize("name", broken_files())
def test_what_is_not_media_raises(name: str, damaged: Any) -> None:
    with AVDecoder(broken_files()[name], damaged=damaged, limits=AVLimits(max_seconds=10)) as decoder:
        for call in (decoder.get_video_with_audio, decoder.get_audio, decoder.get_video_fps):
            with pytest.raises(DecodeError) as caught:
                call()
            assert caught.value.route in ("pyav", "screen")


def test_the_frames_before_and_after_a_hole_are_there_by_option() -> None:
    data = bytearray(video_file("mjpeg-pcm-mov"))
    with AVDecoder(bytes(data)) as decoder:
        (whole,) = decoder.get_video().video_clips
        table = decoder.video.index.packets
    start, stop = int(table.offsets[10]), int(table.offsets[11])
    data[start : start + 1000] = bytes(1000)
    assert stop > start + 1000
    with AVDecoder(bytes(data)) as decoder, pytest.raises(DecodeError, match=r"pyav"):
        decoder.get_video_clips([(8, 12)], "frames")
    with AVDecoder(bytes(data)) as decoder:
        (before,), _ = decoder.get_video_clips([(2, 8)], "frames")
        assert torch.equal(before, whole[2:9])
    with AVDecoder(bytes(data), damaged="partial") as decoder:
        (partial,) = decoder.get_video().video_clips
        assert torch.equal(partial[:10], whole[:10])
        assert torch.equal(partial[-40:], whole[-40:])
        assert len(decoder.get_audio().audio_clips) == 1


def test_the_samples_around_a_hole_are_there_by_option() -> None:
    data = bytearray(audio_file("flac24-mkv"))
    with av.open(io.BytesIO(data)) as container:
        packets = [bytes(packet) for packet in container.demux(audio=0) if packet.size]
    with AVDecoder(bytes(data)) as decoder:
        (whole,) = decoder.get_audio().audio_clips
    place = data.index(packets[10])
    data[place : place + 64] = bytes(64)
    with AVDecoder(bytes(data)) as decoder:
        with pytest.raises(DecodeError, match="Invalid data"):
            decoder.get_audio()
        (after,), _ = decoder.get_audio_clips([(11 * 4608, 12 * 4608)], "samples")
        assert torch.equal(after, whole[:, 11 * 4608 : 12 * 4608])
    with AVDecoder(bytes(data), damaged="partial") as decoder:
        (partial,), ((start, end),) = decoder.get_audio_clips([(0, float("inf"))], "samples")
        assert torch.equal(partial, torch.cat([whole[:, : 10 * 4608], whole[:, 11 * 4608 :]], 1))
        (late,), _ = decoder.get_audio_clips([(12 * 4608 / 48000, 13 * 4608 / 48000)])
        assert torch.equal(late, whole[:, 12 * 4608 : 13 * 4608])
        assert (start, end) == pytest.approx((0, whole.shape[1] / 48000), abs=1e-3)


def test_every_frame_around_a_hole_comes_alone_too() -> None:
    data = packed_avi()
    for share in (15, 20, 30, 40):
        place = len(data) * share // 64
        broken = data[:place] + Random(share).randbytes(len(data) // 20) + data[place + len(data) // 20 :]
        with AVDecoder(broken, damaged="partial") as decoder:
            count = len(decoder.get_video().video_clips[0])
            for number in range(count):
                assert len(decoder.get_video_clips([(number, number)], "frames")[0][0]) == 1


def test_where_a_container_cannot_be_read_on_is_its_end_by_option() -> None:
    data = encode_frames("rv20", "rm", "yuv420p", (176, 144))
    cut = data[: len(data) * 6 // 10]
    with AVDecoder(cut) as decoder, pytest.raises(DecodeError, match="Invalid data"):
        decoder.get_video()
    with AVDecoder(cut, damaged="partial") as decoder:
        count = len(decoder.get_video().video_clips[0])
        assert 0 < count < 8
        assert len(decoder.get_video_clips([(count - 1, count - 1)], "frames")[0][0]) == 1


def test_streams_that_begin_late_end_no_reading() -> None:
    class Late:
        def demux(self, stream: object) -> Iterator[str]:
            yield f"packet of {stream}"
            raise IndexError("list index out of range")  # as PyAV sometimes does, when it reads past its own memory

    assert list(demux_stream(Late(), "video")) == ["packet of video"]


def test_a_cut_file_gives_what_is_there() -> None:
    data = video_file("vp9-opus-webm")
    with AVDecoder(data) as decoder:
        (whole,) = decoder.get_video().video_clips
    with AVDecoder(data[: len(data) // 2], missing="empty") as decoder:
        (cut,) = decoder.get_video().video_clips
        assert 10 < len(cut) < len(whole)
        assert torch.equal(cut[:-1], whole[: len(cut) - 1])
        assert len(decoder.get_video_clips([(2, 3)])[0][0]) == 0


def test_a_header_that_claims_ten_million_frames_costs_neither_memory_nor_time() -> None:
    script = (
        "import resource, sys\n"
        "from energon_dali.av import AVDecoder, AVLimits\n"
        "from energon_dali.errors import DecodeError\n"
        "import av, torch\n"
        "held = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 29),) * 2)\n"
        "data = sys.stdin.buffer.read()\n"
        "for options in ({}, {'damaged': 'partial'}):\n"
        "    try:\n"
        "        AVDecoder(data, **options).get_video()\n"
        "    except DecodeError as error:\n"
        "        print(error)\n"
    )
    data = with_claimed_frames(video_file("h264-b-mp4"), 10_000_000)
    done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.decode().count("claims 10,000,000 samples") == 2
