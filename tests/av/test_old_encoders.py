"""Streams of encoders whose bugs FFmpeg works around: it recognises them by a note, perhaps only in the first
packet."""

from __future__ import annotations

import io
import pickle
import re
from functools import cache
from typing import Any

import av
import numpy as np
import pytest

from energon_dali.av import AVDecoder, MediaFile, VideoReader
from energon_dali.av.key_packets import find_encoder_note
from tests.av.corpus import VideoRecipe, encode_video
from tests.av.full_decode import decode_fully

SIZE = 48
WANTED = [79, 30, 31, 4, 0, 50, 79]
OLD, NEW = b"x264 - core 120", rb"x264 - core \d{3}"


def image(seed: int, contrast: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns a smooth image, 4:4:4 in 0..255: float64[3, 48, 48]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    planes = np.full((3, SIZE, SIZE), 128.0)
    for plane in planes:
        for _ in range(3):
            wave = rng.uniform(0, 0.5) * x + rng.uniform(0, 0.5) * y + rng.uniform(0, 6)
            plane += rng.normal(0, contrast) * np.cos(wave)
    return planes.clip(0, 255)


def encode(pictures: list[Any], box: str) -> bytes:
    """Returns CABAC 4:4:4 with 8x8 transforms, pairs of a key frame and another one."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=box) as container:
        video = container.add_stream("libx264", rate=25)
        video.width = video.height = SIZE
        video.pix_fmt, video.gop_size, video.codec_context.thread_count = "yuv444p", 2, 1
        video.codec_context.options = {
            "x264-params": "qp=30:8x8dct=1:bframes=0:keyint=2:min-keyint=2:scenecut=0:weightp=0:ref=1:subme=1"
        }
        for picture in pictures:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture.astype(np.uint8), "yuv444p")))
        container.mux(video.encode(None))
    return stream.getvalue()


def as_old(data: bytes) -> bytes:
    return re.sub(NEW, OLD, data)


def decodes(data: bytes) -> bool:
    """Returns whether FFmpeg finds no error in a stream; a damaged one has no frames to compare with."""
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.options = {"err_detect": "explode"}
        try:
            return len(list(container.decode(video=0))) > 0
        except av.error.FFmpegError:
            return False


@cache
def old_x264(box: str) -> bytes:
    """Returns a video that is valid, but decodes to other frames if its encoder is taken for an old one."""
    for seed in range(100):
        first = image(seed, 40)
        pair = [first, image(seed + 1000, 10) // 2 + first // 2]
        short = encode(pair, box)
        if decodes(as_old(short)) and (decode_fully(as_old(short)).pictures != decode_fully(short).pictures).any():
            return as_old(encode(pair * 40, box))
    raise AssertionError("no such picture")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("box", ["mp4", "matroska", "avi", "mpegts"])
def test_any_frame_of_old_x264_is_that_of_the_whole(box: str, threads: int) -> None:
    data = old_x264(box)
    pictures = decode_fully(data).pictures
    with AVDecoder(data, threads=threads) as decoder:
        for number in WANTED:
            (clip,) = decoder.get_clips([(number, number)], None, "frames").video_clips
            np.testing.assert_array_equal(clip[0].permute(1, 2, 0).numpy(), pictures[number], err_msg=str(number))
    with pickle.loads(pickle.dumps(MediaFile(data, threads=threads))) as file:
        np.testing.assert_array_equal(VideoReader(file).read(WANTED), pictures[WANTED])
        file.close()
        np.testing.assert_array_equal(VideoReader(file).read(WANTED), pictures[WANTED])


def test_any_frame_of_xvid_is_that_of_the_whole() -> None:
    """Named in the first packet, and by nothing in the container's header: FFmpeg then uses XviD's inverse DCT."""
    stream = io.BytesIO()
    given = av.open(io.BytesIO(encode_video(VideoRecipe("mpeg4", "avi", frames=80))))
    with given, av.open(stream, "w", format="matroska") as made:
        video = made.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(packet for packet in given.demux(video=0) if packet.size):
            packet.dts = packet.pts = number
            packet.time_base, packet.stream = given.streams.video[0].time_base, video
            made.mux(packet)
    notes = iter([b"none", b"XviD0035"])  # the container's header, the first packet, the others
    data = re.sub(rb"Lavc\d+\.\d+\.\d+", lambda found: next(notes, b"none").ljust(len(found[0])), stream.getvalue())
    pictures = decode_fully(data).pictures
    assert (pictures != decode_fully(stream.getvalue()).pictures).any()
    for number in (79, 50, 5):
        with MediaFile(data) as file:
            np.testing.assert_array_equal(VideoReader(file).read([number])[0], pictures[number])


def test_streams_of_today_need_no_note() -> None:
    sei = b"\x06\x05\x30" + bytes(16) + b"x264 - core %d - H.264"
    assert find_encoder_note("h264", memoryview(b"\0\0\1" + sei % 150), 0, None) == b"\0\0\1" + sei % 150
    framed = len(sei % 67).to_bytes(4, "big") + sei % 67
    assert find_encoder_note("h264", memoryview(framed + bytes([0, 0, 0, 1, 0x65])), 4, None) == framed
    assert find_encoder_note("h264", memoryview(b"\0\0\1" + sei % 151), 0, None) == b""
    assert find_encoder_note("hevc", memoryview(b"\0\0\1" + sei % 100), 0, None) == b""
    header = b"\0\0\1\xb0\1\0\0\1\xb2DivX503b1393p"
    assert find_encoder_note("mpeg4", memoryview(header + b"\0\0\1\xb3\0\0\1\xb6"), 0, None) == header
    assert find_encoder_note("mpeg4", memoryview(header + b"\0\0\1\xb6"), 0, b"x" + header) == b""
