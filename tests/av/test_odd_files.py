"""Unusual files: packed B-frames, few samples, cover images, strange sizes and rates."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from energon_dali import SampleDecoder
from energon_dali.av import AudioReader, AVDecoder, AVLimits, MediaFile, VideoReader
from energon_dali.decode.clips import ClipAudio, VideoClips
from energon_dali.decode.pyav import stage_clips
from energon_dali.errors import DecodeError
from tests.av.corpus import VIDEOS, AudioRecipe, VideoRecipe, audio_file, encode_audio, encode_video, video_file
from tests.av.field_coded import field_coded_video
from tests.av.full_decode import decode_fully
from tests.av.ogg_pages import HEADERS, read_packets, write_theora
from tests.decode.sample_images import sample_images

THEORA = Path(__file__).parent.parent / "data" / "theora.ogv"
PLAIN = VideoRecipe("mpeg4", "avi", frames=46, b_frames=2)
DIVX = b"\0\0\1\xb2DivX503b1393p"
"""User data with which DivX and XviD declare that they pack B-frames after the frame that they refer to."""
PICTURE = b"\0\0\1\xb6"


def placeholder(template: bytes) -> bytes:
    """Returns an MPEG-4 frame that is not coded, a placeholder for a packed one, with the type and time of another."""
    start = template.index(PICTURE) + 4
    bits = int.from_bytes(template[start : start + 8], "big")
    at = 62  # of 64: the type has two bits, then ones for whole seconds, a zero, a marker, the time, and a marker
    while bits >> (at - 1) & 1:
        at -= 1
    at -= 2 + 5 + 1  # 25 ticks per second take five bits
    head = bits >> at << at
    return PICTURE + (head | 1 << (at - 2)).to_bytes(8, "big")[: (64 - at) // 8 + 1]


@cache
def packed_avi() -> bytes:
    """Returns an AVI whose B-frames are packed: I, P+B1, B2, -, P+B1, B2, -, ...; placeholders are marked as keys."""
    stream = io.BytesIO()
    source = av.open(io.BytesIO(encode_video(PLAIN)))
    with source, av.open(stream, "w", format="avi") as target:
        template = source.streams.video[0]
        video = target.add_stream_from_template(template)
        packets = [packet for packet in source.demux(template) if packet.size]
        contents = [bytes(packet) for packet in packets]
        kinds = [content[content.index(PICTURE) + 4] >> 6 for content in contents]
        written: list[tuple[bytes, bool]] = []
        at = 0
        while at < len(contents):
            count = 1
            while at + count < len(contents) and kinds[at + count] == 2:
                count += 1
            group = contents[at : at + count]
            if kinds[at] == 0:
                group[0] = group[0].replace(PICTURE, DIVX + PICTURE, 1)
            chunks = [b"".join(group[:2]), *group[2:]]
            written += [(chunk, kinds[at] == 0 and not number) for number, chunk in enumerate(chunks)]
            if count > 1:
                written.append((placeholder(group[0]), kinds[at] == 0))
            at += count
        for number, (content, is_key) in enumerate(written):
            packet = av.Packet(content)
            packet.stream, packet.is_keyframe = video, is_key
            packet.pts = packet.dts = number
            packet.time_base = template.time_base
            target.mux(packet)
    return stream.getvalue()


@cache
def encode_frames(
    codec: str, container: str, pixel_format: str, *sizes: tuple[int, int], options: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Returns a video with eight frames of noise of each size, one size after the other in one stream."""
    stream = io.BytesIO()
    random = np.random.default_rng(3)
    with av.open(stream, "w", format=container) as target:
        video = target.add_stream(codec, rate=25, options=dict(options))
        video.width, video.height, video.pix_fmt = *sizes[0], pixel_format
        number = 0
        for size in sizes:
            encoder: Any = video.codec_context
            if size != sizes[0]:
                encoder = av.CodecContext.create(codec, "w")
                encoder.width, encoder.height, encoder.pix_fmt = *size, pixel_format
                encoder.time_base, encoder.framerate = Fraction(1, 25), 25
            packets = []
            for _ in range(8):
                frame = av.VideoFrame.from_ndarray(random.integers(0, 256, (size[1], size[0], 3), np.uint8), "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                packets += encoder.encode(frame.reformat(format=pixel_format))
                number += 1
            for packet in [*packets, *encoder.encode(None)]:
                packet.stream = video
                target.mux(packet)
    return stream.getvalue()


def test_packed_b_frames_are_found_alone_as_in_a_full_decode() -> None:
    data = packed_avi()
    whole = decode_fully(data).pictures
    np.testing.assert_array_equal(whole, decode_fully(encode_video(PLAIN)).pictures, err_msg="the test's own file")
    for number in range(len(whole)):
        with MediaFile(data, threads=1 + number % 2) as file:
            np.testing.assert_array_equal(VideoReader(file).read([number])[0], whole[number], err_msg=f"{number = }")
    with AVDecoder(data) as decoder:
        assert decoder.video.index.starts.max() > 30, "decodes from the start always"
        clip = decoder.get_video().video_clips[0]
    np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), whole)
    handle, file = stage_clips("avi", data, VideoClips(2, 3))
    file.close()
    assert not handle.packets_are_frames


@pytest.mark.parametrize(
    ("codec", "container", "pixel_format", "sizes"),
    [
        ("ffv1", "matroska", "gray", [(64, 48)]),
        ("ffv1", "matroska", "bgra", [(64, 48)]),
        ("ffv1", "matroska", "yuv410p", [(64, 48)]),
        ("png", "mov", "rgba", [(64, 48)]),
        ("prores_ks", "mov", "yuva444p10le", [(64, 48)]),
        ("gif", "gif", "rgb8", [(64, 48)]),
        ("apng", "apng", "rgb24", [(64, 48)]),
        ("qtrle", "mov", "rgb24", [(64, 48)]),
        ("huffyuv", "avi", "yuv422p", [(64, 48)]),
        ("rawvideo", "avi", "bgr24", [(64, 48)]),
        ("mpeg2video", "mpegts", "yuv420p", [(64, 48)]),
        ("mpeg4", "3gp", "yuv420p", [(64, 48)]),
        ("wmv2", "asf", "yuv420p", [(64, 48)]),
        ("flv", "flv", "yuv420p", [(64, 48)]),
        ("libx264", "mp4", "yuv420p", [(2, 2)]),
        ("libvpx-vp9", "webm", "yuv420p", [(1, 1)]),
        ("mjpeg", "avi", "yuvj420p", [(1, 1)]),
        ("libvpx", "webm", "yuv420p", [(64, 48), (96, 32)]),
        ("libvpx", "ivf", "yuv420p", [(64, 48)]),
        ("h261", "avi", "yuv420p", [(176, 144)]),
        ("mjpeg", "mov", "yuvj444p", [(64, 48), (32, 80)]),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_formats_of_every_sort_are_decoded_as_a_whole_and_in_part(
    codec: str, container: str, pixel_format: str, sizes: list[tuple[int, int]]
) -> None:
    data = encode_frames(codec, container, pixel_format, *sizes)
    whole = decode_fully(data, sizes[0])
    count = 8 * len(sizes)
    assert whole.pictures.shape == (count, *sizes[0][::-1], 3)
    with AVDecoder(data) as decoder:
        (clip,) = decoder.get_video().video_clips
        np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), whole.pictures)
        assert decoder.get_video_duration(get_frame_count=True)[1] == count
        for first in (count - 2, 3, 1):
            (part,), _ = decoder.get_video_clips([(first, first + 1)], "frames")
            assert torch.equal(part, clip[first : first + 2])
        for number, pts in enumerate(whole.pts):
            time = float(pts * whole.time_base)
            (one,), ((start, _),) = decoder.get_video_clips([(time, time)])
            assert (start, len(one)) == (time, 1)
            assert torch.equal(one[0], clip[number])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_video_stream_counts_and_a_cover_does_not(threads: int) -> None:
    data = video_file("h264-b-mkv")
    stream = io.BytesIO()
    with (
        av.open(io.BytesIO(data)) as first,
        av.open(io.BytesIO(video_file("mjpeg-mkv"))) as second,
        av.open(io.BytesIO(audio_file("aac-mkv"))) as third,
        av.open(stream, "w", format="matroska") as target,
    ):
        sources = (third, first, second)
        copies = [target.add_stream_from_template(source.streams[0]) for source in sources]
        for source, copy in zip(sources, copies, strict=True):
            for packet in source.demux(source.streams[0]):
                if packet.size:
                    packet.stream = copy
                    target.mux(packet)
    with AVDecoder(stream.getvalue(), threads=threads) as decoder:
        (clip,) = decoder.get_video().video_clips
        np.testing.assert_array_equal(clip.permute(0, 2, 3, 1).numpy(), decode_fully(data).pictures)
    cover = b"\0image/png\0\x03\0" + sample_images()["png-rgb"]
    tag = b"APIC" + struct.pack(">IH", len(cover), 0) + cover
    size = bytes(len(tag) >> shift & 127 for shift in (21, 14, 7, 0))
    song = b"ID3\x03\0\0" + size + tag + audio_file("mp3-mono")
    with av.open(io.BytesIO(song)) as container:
        assert len(container.streams.video) == 1
    with AVDecoder(song) as decoder:
        assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (False, True)
        assert decoder.get_frames().audio_shapes == [(1, 70_001)]  # type: ignore[union-attr]
        with pytest.raises(DecodeError, match="no video stream"):
            decoder.get_video()


@pytest.mark.parametrize("samples", [1, 480, 3000, 10_000])
@pytest.mark.parametrize(
    ("codec", "container", "sample_format", "rate"),
    [
        ("libopus", "ogg", "s16", 48000),
        ("libmp3lame", "mp3", "s16p", 44100),
        ("aac", "mp4", "fltp", 44100),
        ("vorbis", "ogg", "fltp", 44100),
        ("flac", "flac", "s16", 44100),
        ("libopus", "webm", "s16", 48000),
        ("pcm_s16le", "wav", "s16", 8000),
        ("pcm_s32le", "wav", "s32", 192000),
    ],
)
def test_a_few_samples_are_as_many_as_a_full_decode_gives(
    codec: str, container: str, sample_format: str, rate: int, samples: int
) -> None:
    data = encode_audio(AudioRecipe(codec, container, sample_format, "stereo", rate, samples))
    with av.open(io.BytesIO(data)) as source:
        frames = list(source.decode(audio=0))
    arrays = [frame.to_ndarray() for frame in frames]
    arrays = [array if frames[0].format.is_planar else array.reshape(-1, 2).T for array in arrays]
    if not arrays:
        with AVDecoder(data) as decoder, pytest.raises(DecodeError, match="No sample"):
            decoder.get_audio()
        return
    whole = np.concatenate(arrays, axis=1)
    with AVDecoder(data) as decoder:
        found = decoder.get_audio()
        np.testing.assert_array_equal(found.audio_clips[0].numpy(), whole)
        start = float(frames[0].pts * frames[0].time_base)
        assert found.audio_timestamps == [pytest.approx((start, start + whole.shape[1] / rate))]
        again, _ = decoder.get_audio_clips([(0, 1)], "samples")
        np.testing.assert_array_equal(again[0].numpy(), whole[:, :1])


def test_a_repeated_frame_of_theora_is_shown_longer() -> None:
    """A frame without data repeats the one before it; the stream was encoded by libtheora, which PyAV lacks."""
    packets = read_packets(THEORA.read_bytes())
    pictures = decode_fully(write_theora(packets)).pictures
    assert len(pictures) == 12
    head = HEADERS + 5
    data = write_theora([*packets[:head], b"", b"", *packets[head : head + 3], b"", *packets[head + 3 :], b""])
    with AVDecoder(data) as decoder:
        video = decoder.get_video()
        np.testing.assert_array_equal(video.video_clips[0].permute(0, 2, 3, 1).numpy(), pictures)
        assert video.video_timestamps == [(0, 16 / 25)]
        index = decoder.video.index
        assert np.diff([*index.pts, 16]).tolist() == index.durations.tolist() == [1] * 4 + [3, 1, 1, 2, 1, 1, 1, 2]
        for seconds, number in ((0.16, 4), (0.2, 4), (0.24, 4), (0.28, 5), (0.4, 7), (0.44, 8), (0.6, 11)):
            clips = decoder.get_clips([(seconds, seconds)])
            np.testing.assert_array_equal(clips.video_clips[0][0].permute(1, 2, 0).numpy(), pictures[number])
    clips = SampleDecoder(av_decode=VideoClips(1, 16, clip_duration_seconds=0.64)).decode("ogg", data)
    shown = [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 7, 8, 9, 10, 11, 11]
    np.testing.assert_array_equal(clips.frames[0].permute(0, 2, 3, 1).numpy(), pictures[shown])
    with AVDecoder(data, limits=AVLimits(max_packets=10)) as decoder, pytest.raises(DecodeError, match="max_packets"):
        decoder.get_video()


@pytest.mark.parametrize("rate", [16000, 44100, 192000])
def test_few_samples_are_resampled_to_as_many_as_they_last(rate: int) -> None:
    for samples in (1, 2, 7, 15, 16, 17, 31, 33, 40, 65, 100, 200, 400):
        data = encode_audio(AudioRecipe("pcm_s16le", "wav", "s16", "stereo", 48000, samples))
        with MediaFile(data) as file:
            reader = AudioReader(file, sample_rate=rate, channels=1)
            assert reader.num_samples == samples * rate // 48000
            if reader.num_samples:
                whole = reader.read(0, reader.num_samples)
                assert whole.shape == (1, reader.num_samples)
                assert np.array_equal(reader.read(reader.num_samples - 1, reader.num_samples), whole[:, -1:])


@pytest.mark.parametrize("container", ["h264", "mpegts", "matroska"])
def test_fields_coded_as_separate_pictures_make_whole_frames(container: str) -> None:
    data = field_coded_video(container, 10)
    pictures = decode_fully(data).pictures
    assert (pictures[:, 0] != pictures[:, 1]).all(), "the fields differ"
    with MediaFile(data) as file:
        reader = VideoReader(file)
        for frames in (range(10), [1], [4, 7], [9]):
            np.testing.assert_array_equal(reader.read(frames), pictures[list(frames)])


def test_a_stream_without_a_size_is_an_error_of_the_file() -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return kind + struct.pack("<I", len(content)) + content + bytes(len(content) & 1)

    body = chunk(b"VP8X", bytes([2, 0, 0, 0, 31, 0, 0, 31, 0, 0])) + chunk(b"ANIM", bytes(6))
    body += chunk(b"ANMF", bytes(16) + chunk(b"VP8 ", bytes(60))) * 2
    animated = b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    with AVDecoder(animated) as decoder, pytest.raises(DecodeError):
        decoder.get_video()
    for spec in (VideoClips(), VideoClips(size=32)):
        with pytest.raises(DecodeError):
            SampleDecoder(av_decode=spec).decode("mp4", animated)


@pytest.mark.parametrize("rate", [2**31 - 1, 3_000_000_019, 1])
def test_a_header_may_claim_any_sample_rate(rate: int) -> None:
    data = bytearray(audio_file("pcm16-mono-wav"))
    data[24:28] = struct.pack("<I", rate)
    for spec in (
        VideoClips(2, 1, clip_duration_seconds=1.0, audio=True),
        VideoClips(2, 1, clip_duration_seconds=1.0, audio=ClipAudio(sample_rate=16000, channels=1)),
    ):
        try:
            clips = SampleDecoder(av_decode=spec).decode("wav", bytes(data))
        except DecodeError:
            continue
        assert clips.audio.numel() < 1_000_000
    for options in ({}, {"sample_rate": 16000}):
        with AVDecoder(bytes(data), **options) as decoder:  # type: ignore[arg-type]
            try:
                assert decoder.get_audio_clips([(0, 0.01)])[0][0].numel() < 1_000_000_000
            except DecodeError as error:
                assert str(error)  # noqa: PT017 - both outcomes are right


def test_encoding_leaves_the_scheduling_of_this_thread_as_it_was() -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    encode_video(replace(VIDEOS["av1-mp4"], frames=2))
    assert (os.sched_getscheduler(0), os.sched_getparam(0)) == before
