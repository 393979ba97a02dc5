"""Unusual audio files: many channels, concatenated files, rare sample types."""

from __future__ import annotations

import io
import struct
from collections.abc import Collection
from random import Random

import av
import numpy as np
import pytest

from energon_dali import SampleDecoder
from energon_dali.av import AVDecoder
from energon_dali.av.flac_frames import UNKNOWN, count_samples
from energon_dali.decode.clips import ClipAudio, VideoClips
from energon_dali.errors import DecodeError
from tests.av.corpus import AudioRecipe, VideoRecipe, audio_file, encode_audio, encode_video
from tests.av.ogg_pages import HEADERS, read_packets, write_vorbis


def decode_packed(data: bytes) -> tuple[np.ndarray, float]:
    """Returns all samples, [channels, samples], and when the first is heard, from interleaved frames."""
    pieces, start = [], 0.0
    with av.open(io.BytesIO(data)) as container:
        packer = None
        for frame in container.decode(audio=0):
            if packer is None:
                packer = av.AudioResampler(format=frame.format.packed.name)
                start = float((frame.pts or 0) * (frame.time_base or 0))
            pieces += [piece.to_ndarray().reshape(piece.samples, -1).T for piece in packer.resample(frame)]
    return np.concatenate(pieces, axis=1), start


@pytest.mark.parametrize("layout", ["6.1", "7.1"])
def test_as_many_channels_as_a_file_has(layout: str) -> None:
    data = encode_audio(AudioRecipe("libopus", "ogg", "flt", layout, 48000, 20_003))
    whole, _ = decode_packed(data)
    with AVDecoder(data) as decoder:
        (clip,) = decoder.get_audio().audio_clips
        np.testing.assert_array_equal(clip.numpy(), whole)
    for options in ({"sample_rate": 16000}, {"audio_channels": 1}, {"audio_channels": 8, "sample_rate": 24000}):
        with AVDecoder(data, **options) as decoder:  # type: ignore[arg-type]
            shape = decoder.get_audio().audio_shapes[0]
        channels = options.get("audio_channels", len(whole))
        assert shape == (channels, whole.shape[1] * options.get("sample_rate", 48000) // 48000)
    mono = audio_file("pcm16-mono-wav")
    clips = SampleDecoder(av_decode=VideoClips(1, 1, audio=ClipAudio(16000, 8, 0.5))).decode("wav", mono)
    assert clips.audio.shape == (1, 8, 8000)


@pytest.mark.parametrize("name", ["opus-ogg", "flac", "aac-adts", "vorbis-ogg"])
def test_concatenated_files_equal_a_full_decode(name: str) -> None:
    data = audio_file(name) + audio_file(name)
    whole, _ = decode_packed(data)
    random = Random(name)
    for _ in range(4):
        first = random.randrange(whole.shape[1])
        with AVDecoder(data) as decoder:
            (clip,), ((start, _),) = decoder.get_audio_clips([(first, first + 500)], "samples")
            assert decoder.audio.num_samples == whole.shape[1]
            np.testing.assert_array_equal(clip.numpy(), whole[:, first : first + 500])
            assert abs(start - decoder.audio.index.start_seconds - first / decoder.audio.sample_rate) < 0.05


def test_audio_of_a_format_that_cannot_seek() -> None:
    """In an SWF, as in some AVI files without an index, FFmpeg does not find the last packets."""
    data = encode_audio(AudioRecipe("libmp3lame", "swf", "s16p"))
    whole, _ = decode_packed(data)
    for first in (0, 50_000, whole.shape[1] - 300):
        with AVDecoder(data) as decoder:
            (clip,), _ = decoder.get_audio_clips([(first, first + 300)], "samples")
            assert decoder.audio.num_samples == whole.shape[1]
        np.testing.assert_array_equal(clip.numpy(), whole[:, first : first + 300])


def without_index(data: bytes) -> bytes:
    """Returns an AVI file without the chunk that lists its packets, as after an interrupted recording."""
    content = bytearray(data[: data.rindex(b"idx1")])
    flags = content.index(b"avih") + 20
    content[flags] &= ~0x10  # AVIF_HASINDEX
    return bytes(content)


@pytest.mark.parametrize("video_codec", ["mpeg4", "mjpeg"])
@pytest.mark.parametrize("audio_codec", ["pcm_s16le", "libmp3lame", "ac3"])
def test_clips_of_an_avi_without_an_index(video_codec: str, audio_codec: str) -> None:
    data = encode_video(VideoRecipe(codec=video_codec, container="avi", audio=audio_codec, frames=60))
    spec = VideoClips(2, 4, audio=ClipAudio(16000, 1, 0.5))
    wanted, found = (SampleDecoder(av_decode=spec).decode("avi", file) for file in (data, without_index(data)))
    np.testing.assert_array_equal(found.audio, wanted.audio)
    np.testing.assert_array_equal(found.frames, wanted.frames)


def assert_ranges_are_slices(data: bytes) -> None:
    whole, _ = decode_packed(data)
    for first in range(0, whole.shape[1] - 700, whole.shape[1] // 8):
        with AVDecoder(data) as decoder:
            (clip,), _ = decoder.get_audio_clips([(first, first + 700)], "samples")
            assert decoder.audio.num_samples == whole.shape[1]
        np.testing.assert_array_equal(clip.numpy(), whole[:, first : first + 700], err_msg=str(first))


def without_packets(data: bytes, container: str, lost: Collection[int]) -> bytes:
    """Returns an audio file without some of its packets; the others keep their times."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(stream, "w", format=container) as target:
        sound = target.add_stream_from_template(source.streams.audio[0])
        for number, packet in enumerate(packet for packet in source.demux(audio=0) if packet.size):
            if number not in lost:
                packet.stream = sound
                target.mux(packet)
    return stream.getvalue()


@pytest.mark.parametrize("lost", [(40,), (9, 10, 50, 51, 52, 60)], ids=["one", "more"])
@pytest.mark.parametrize(
    ("codec", "container", "rate"), [("vorbis", "mp4", 44100), ("alac", "mov", 8000), ("mp2", "mov", 44100)]
)
def test_gaps_in_mp4_which_makes_the_packets_before_longer(
    codec: str, container: str, rate: int, lost: tuple[int, ...]
) -> None:
    sample_format = {"vorbis": "fltp", "alac": "s16p", "mp2": "s16"}[codec]
    samples = 4096 * 70 if codec == "alac" else 100_003
    data = encode_audio(AudioRecipe(codec, container, sample_format, "stereo", rate, samples))
    assert_ranges_are_slices(without_packets(data, container, lost))


@pytest.mark.parametrize("lost", [(40,), (9, 10, 50, 51, 52, 60)], ids=["one", "more"])
def test_gaps_in_ogg_whose_next_packet_counts_on_the_missing_one(lost: tuple[int, ...]) -> None:
    """A Vorbis packet says how long the one before it was: the missing one. FFmpeg's duration follows that."""
    packets = read_packets(audio_file("vorbis-ogg"))
    packets[0] = packets[0][:28] + b"\xb8" + packets[0][29:]  # short blocks of 256 samples, long ones of 2,048
    for number in lost:
        after = packets[HEADERS + number + 1]
        packets[HEADERS + number + 1] = bytes([after[0] & ~4]) + after[1:]  # the block before was short
    kept = [number for number in range(len(packets) - HEADERS) if number not in lost]
    data = write_vorbis(
        packets[:HEADERS] + [packets[HEADERS + number] for number in kept], [1024 * number for number in kept]
    )
    assert_ranges_are_slices(data)


def test_samples_that_are_left_out_in_the_middle() -> None:
    """Matroska may say of any packet how many of its last samples are not heard."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(audio_file("opus-webm"))) as source, av.open(stream, "w", format="matroska") as target:
        sound = target.add_stream_from_template(source.streams.audio[0])
        packets = [packet for packet in source.demux(audio=0) if packet.size]
        packets[40].set_sidedata(packets[-1].get_sidedata("skip_samples"))
        for packet in packets:
            packet.stream = sound
            target.mux(packet)
    assert decode_packed(stream.getvalue())[0].shape[1] < decode_packed(audio_file("opus-webm"))[0].shape[1]
    assert_ranges_are_slices(stream.getvalue())


def test_blocks_of_samples_that_go_over_the_ends_of_packets() -> None:
    data = encode_audio(AudioRecipe("pcm_dvd", "vob", "s16", rate=48000))
    whole, start = decode_packed(data)
    for first in (0, 30_000, 70_001):
        with AVDecoder(data) as decoder:
            (clip,), ((time, _),) = decoder.get_audio_clips([(first, first + 100)], "samples")
        np.testing.assert_array_equal(clip.numpy(), whole[:, first : first + 100])
        assert abs(time - start - first / 48000) < 0.02


def test_what_one_tensor_cannot_hold_is_named() -> None:
    changed = b"".join(
        encode_audio(AudioRecipe("aac", "adts", "fltp", layout, rate, 40_000))
        for layout, rate in (("stereo", 44100), ("stereo", 22050))
    )
    with AVDecoder(changed) as decoder:
        assert decoder.get_audio_clips([(0, 100)], "samples")[0][0].shape == (2, 100)
        with pytest.raises(DecodeError, match="change in the middle"):
            decoder.get_audio()
    samples = bytes(8 * 4000)
    body = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 64000, 8, 64) + b"data" + struct.pack("<I", len(samples))
    wide = b"RIFF" + struct.pack("<I", len(body) + len(samples) + 4) + b"WAVE" + body + samples
    with AVDecoder(wide) as decoder, pytest.raises(DecodeError, match=r"PyAV cannot return its samples.*s64"):
        decoder.get_audio()


@pytest.mark.parametrize(
    ("header", "samples"),
    [
        ("fff81900" + "00" * 9, 192),
        ("fff82900" + "00" * 9, 576),
        ("fff85900" + "00" * 9, 4608),
        ("fff88900" + "00" * 9, 256),
        ("fff8f900" + "7f" * 9, 32768),
        ("fff86900" + "00" + "63" + "00" * 7, 100),
        ("fff87900" + "7f" + "0ccb" + "00" * 6, 3276),
        ("fff97900" + "c280" + "0ccb" + "00" * 5, 3276),
        ("fff87900" + "e08080" + "0001" + "00" * 4, 2),
        ("fff80900" + "00" * 9, UNKNOWN),
        ("664c6143" + "00" * 9, UNKNOWN),
        ("fff85900", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_headers_of_flac_say_how_many_samples_follow(header: str, samples: int) -> None:
    assert count_samples(bytes.fromhex(header)) == samples
