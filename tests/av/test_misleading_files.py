"""Files whose times or headers mislead a reader, and which a plain decode from the start decodes correctly."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from typing import Any

import av
import numpy as np
import pytest

from energon_dali.av import AVDecoder, AVLimits, MediaFile, VideoReader
from energon_dali.av.stream_facts import is_interlaced_mpeg4
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.pyav import decode_clips, stage_clips
from energon_dali.errors import DecodeError
from tests.av.corpus import VideoRecipe, encode_video, video_file
from tests.av.full_decode import FullDecode, decode_fully
from tests.av.test_odd_files import encode_frames
from tests.decode.dali.video.uneven_videos import uneven_video


@cache
def without_times(name: str, container: str) -> bytes:
    """Returns a video of the corpus in a container, shown in file order, as remuxed raw streams are."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(video_file(name))) as source, av.open(stream, "w", format=container) as target:
        template = source.streams.video[0]
        copy = target.add_stream_from_template(template)
        for number, packet in enumerate(packet for packet in source.demux(template) if packet.size):
            packet.stream = copy
            packet.pts = packet.dts = round(number / 25 / packet.time_base)
            target.mux(packet)
    return stream.getvalue()


def check_frames(data: bytes, whole: FullDecode, threads: int = 1) -> None:
    """Asserts that frames equal those of a full decode: all of them, single ones, and those of clips."""
    with AVDecoder(data, threads=threads) as decoder:
        (clip,) = decoder.get_video().video_clips
    np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), whole.pictures)
    for number in range(len(whole.pictures) - 1, -1, -3):
        with MediaFile(data, threads=threads) as file:
            reader = VideoReader(file)
            for one in (number, number // 2):
                np.testing.assert_array_equal(reader.read([one])[0], whole.pictures[one], err_msg=f"{one = }")
    handle, file = stage_clips("mp4", data, VideoClips(2, 3, stride=4))
    frames: Any = decode_clips(handle, file).frames
    np.testing.assert_array_equal(frames.permute(0, 1, 3, 4, 2).numpy(), whole.pictures[handle.frame_indices])


@pytest.mark.parametrize(
    ("name", "container"),
    [("h264-b-mp4", "mp4"), ("h264-b-mp4", "matroska"), ("hevc-b-mkv", "mp4"), ("mpeg4-b-mp4", "matroska")],
)
def test_times_that_contradict_the_decoder_are_put_in_its_order(name: str, container: str) -> None:
    data = without_times(name, container)
    whole = decode_fully(data)
    assert whole.pts != sorted(whole.pts), "the test's own file"
    check_frames(data, whole)
    with AVDecoder(data) as decoder:
        assert decoder.video.index.pts.tolist() == sorted(whole.pts)
    handle, file = stage_clips("mp4", data, VideoClips(1, 3))
    file.close()
    assert not handle.packets_are_frames, "who counts packets would show others"


@pytest.mark.parametrize(
    ("codec", "container"), [("libx264", "mp4"), ("libx264", "matroska"), ("mpeg4", "mp4"), ("mpeg4", "matroska")]
)
def test_packets_tell_the_frames_where_no_picture_comes_out_of_order(codec: str, container: str) -> None:
    """Noise is encoded without B-frames, although the header allows them."""
    data = encode_frames(codec, container, "yuv420p", (64, 48), options=(("bf", "2"), ("b_strategy", "1")))
    with AVDecoder(data) as decoder:
        index = decoder.video.index
        with decoder.video.file.opened() as opened:
            context: Any = opened.streams.video[0].codec_context
            assert context.has_b_frames, "the test's own file"
    assert not index.proven, "all of it was decoded for the index"
    check_frames(data, decode_fully(data))
    handle, file = stage_clips("mp4", data, VideoClips(1, 3))
    file.close()
    assert handle.packets_are_frames


def test_times_that_start_over_go_on() -> None:
    part = encode_video(VideoRecipe(container="mpegts", b_frames=2, audio="mp2"))
    one, whole = decode_fully(part), decode_fully(part + part)
    count = len(one.pictures)
    assert (len(whole.pts), whole.pts[count]) == (2 * count, whole.pts[0]), "the test's own file"
    check_frames(part + part, whole)
    with AVDecoder(part + part) as decoder:
        index = decoder.video.index
        start = float(one.pts[0] * one.time_base)
        np.testing.assert_allclose(index.times, start + np.arange(2 * count) / 25, atol=1e-4)
        (clip,), _ = decoder.get_video_clips([(start + count / 25 + 0.01, start + count / 25 + 0.13)])
        np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), whole.pictures[count : count + 4])
        assert abs(decoder.audio.index.end_seconds - index.end_seconds) < 0.1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("container", ["mp4", "avi"])
def test_interlaced_mpeg4_is_that_of_a_full_decode(container: str, threads: int) -> None:
    flags = (("flags", "+ildct+ilme"),)
    data = encode_video(VideoRecipe("mpeg4", container, b_frames=2, encoder_options=flags))
    check_frames(data, decode_fully(data), threads)


@pytest.mark.parametrize(
    ("header", "interlaced"),
    [
        ("000001b0f1000001b5a913000001000000012008d48d0800cd05040f1c103f", True),
        ("000001b0f1000001b5a913000001000000012008d48d0800cd05040f14103f", False),
        ("000001b0f5000001b509000001000000012008bc04068400670c14103c518f", False),
        ("0000012008d48d", False),
        ("0000012008d48d0800cd05040f", False),
        ("000001", False),
    ],
)
def test_headers_of_mpeg4_tell_whether_it_is_interlaced(header: str, interlaced: bool) -> None:
    assert is_interlaced_mpeg4(bytes.fromhex(header)) is interlaced
    assert not is_interlaced_mpeg4(None)


@cache
def with_another_header(codec: str, size: tuple[int, int]) -> bytes:
    """Returns an MP4 of 128 x 96 pixels with the header of another size; parameter sets are in the frames."""
    options = (("x265-params", "repeat-headers=1:log-level=none"),) if codec == "hevc" else ()
    recipe = VideoRecipe(codec, "mp4", frames=20, gop=5, size=(128, 96), encoder_options=options)
    stream = io.BytesIO()
    with (
        av.open(io.BytesIO(encode_video(replace(recipe, size=size, frames=8)))) as header,
        av.open(io.BytesIO(encode_video(recipe))) as source,
        av.open(stream, "w", format="mp4") as target,
    ):
        copy = target.add_stream_from_template(header.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                target.mux(packet)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["hevc in a large one", "libvpx-declared-large", "libvpx-declared-small"])
def test_frames_come_in_the_size_in_which_they_are_decoded(name: str) -> None:
    data = with_another_header("hevc", (640, 480)) if name.startswith("hevc") else uneven_video(name)
    with av.open(io.BytesIO(data)) as container:
        declared = container.streams.video[0].width, container.streams.video[0].height
        frame = next(container.decode(video=0))
    size = frame.width, frame.height
    assert size != declared
    whole = decode_fully(data, size)
    check_frames(data, whole)
    with AVDecoder(data) as decoder:
        last = decoder.get_clips([(len(whole.pts) - 1,) * 2], None, "frames")
        assert last.video_shapes == [(1, 3, *size[::-1])]
        assert (decoder.video.width, decoder.video.height) == size
    handle, file = stage_clips("mp4", data, VideoClips(1, 2, size=50))
    frames: Any = decode_clips(handle, file).frames
    assert min(frames.shape[-2:]) == 50
    assert frames.shape[-1] == 50 * size[0] // size[1]
    handle, file = stage_clips("mp4", data, VideoClips(1, 2), limits=AVLimits(max_bytes=2 * 3 * size[0] * size[1]))
    if declared < size:
        assert decode_clips(handle, file).frames is not None
        handle.limits = AVLimits(max_bytes=2 * 3 * size[0] * size[1] - 1)
        with pytest.raises(DecodeError, match="max_bytes"):
            decode_clips(handle)


@pytest.mark.parametrize("name", ["libvpx-shrinks", "libvpx-vp9-grows", "mpeg4-shrinks"])
def test_frames_that_change_their_size_come_in_that_of_the_first(name: str) -> None:
    data = uneven_video(name)
    whole = decode_fully(data, (320, 240))
    check_frames(data, whole)
