"""The index of a media file says what a scan of the whole file says, in few bytes; damaged bytes of it are refused."""

from __future__ import annotations

import dataclasses
import io
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from energon_dali.av import AudioReader, AVDecoder, MediaFile, VideoReader
from energon_dali.av.frame_index import NO_TIME, PacketTable, list_frames, order_by_time
from energon_dali.av.media_index import MediaIndex, StreamIndex
from energon_dali.av.media_indexing import MediaIndexer, index_media
from energon_dali.av.packed_column import ColumnReader, ColumnWriter
from energon_dali.av.stored_index import pack_media_index, read_media_index
from energon_dali.errors import ConfigError, DatasetFormatError, DecodeError
from energon_dali.shards.index.media_index_file import reason_in_entry
from tests.av.corpus import AUDIOS, VIDEOS, VideoRecipe, audio_file, broken_files, encode_video, video_file
from tests.av.matroska_elements import COMPRESSION, ENCODING, element, with_encodings
from tests.av.test_encrypted import CENC, encrypted_mp4
from tests.av.test_video_reader import HARD
from tests.part import sampled

FRAME_BYTES = 8
"""Most bytes per frame of an index, for videos of ten seconds and more."""


def file_of(name: str) -> bytes:
    if name in HARD:
        return encode_video(HARD[name])
    return video_file(name) if name in VIDEOS else audio_file(name)


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    assert type(one) is type(other), path
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name), f"{path}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, path
        assert np.array_equal(one, other), path
    else:
        assert one == other, path


def index_of(data: bytes | str) -> MediaIndex:
    with MediaFile(data) as file:
        return index_media(file)


@pytest.mark.parametrize("name", sorted({*VIDEOS, *AUDIOS, *HARD} - {"h264-ts"}))
def test_equals_a_scan_of_the_whole_file(name: str) -> None:
    data = file_of(name)
    index = index_of(data)
    stored = pack_media_index(index)
    again = read_media_index(stored)
    assert_equal(again, index)
    assert pack_media_index(again) == stored
    assert again.size_bytes == len(data)
    with MediaFile(data) as file:
        assert again.streams == file.streams
        assert again.format == file.format or not file.format
        assert (again.video is None, again.audio is None) == (
            file.find_stream("video") is None,
            file.find_stream("audio") is None,
        )
        if again.video is not None and again.video.first_frame is not None:
            video, first = VideoReader(file), again.video.first_frame
            assert_equal(again.video.frames, video.index)
            video.read([0], (16, 16))  # a header may misstate the size
            assert (first.width, first.height) == (video.width, video.height)
            assert (first.rotation, first.colours) == (video.rotation, video.colours)
        if again.audio is not None:
            assert_equal(again.audio.audio, AudioReader(file).index)


@pytest.mark.parametrize("name", sampled(sorted({*VIDEOS, *AUDIOS, *HARD} - {"h264-ts"}), 24))
def test_packets_are_where_it_says(name: str) -> None:
    data = file_of(name)
    index = index_of(data)
    for table in (index.video, index.audio):
        if table is None:
            continue
        with av.open(io.BytesIO(data)) as container:
            packets = [packet for packet in container.demux(container.streams[table.facts.position]) if packet.size]
            assert len(packets) == len(table)
            for number, packet in enumerate(packets):
                start, size = int(table.payload_offsets[number]), int(table.sizes[number])
                assert data[start : start + size] == bytes(packet)
                assert table.matches(number, data[start : start + size])
                assert table.packets.pts[number] == (NO_TIME if packet.pts is None else packet.pts)
                assert table.packets.is_hidden[number] or not packet.is_discard
                assert (number in table.skips) == packet.has_sidedata("skip_samples")
        assert not table.matches(0, bytes(int(table.sizes[0])))
        assert not table.matches(0, data[: int(table.sizes[0]) + 1])


@pytest.mark.parametrize("name", ["h264-b-mp4", "av1-mp4", "mpeg4-mp3-avi", "colour-h264-bt709-full", "mp3", "flac"])
def test_what_decoders_receive(name: str) -> None:
    data = file_of(name)
    index = read_media_index(pack_media_index(index_of(data)))
    for table in (index.video, index.audio):
        if table is None:
            continue
        with av.open(io.BytesIO(data)) as container:
            context: Any = container.streams[table.facts.position].codec_context
            setup = table.setup
            assert setup.extradata == (context.extradata or b"")
            assert (setup.decoder, setup.codec_tag.decode("latin-1")) == (context.codec.name, context.codec_tag)
            assert setup.bit_rate == (context.bit_rate or 0)
            if table is index.video:
                expected = (context.colorspace, context.color_range, context.color_primaries, context.color_trc)
                assert setup.colours == expected
                assert setup.is_intra_only == context.codec.intra_only
                assert setup.reorder_depth == {"h264-b-mp4": 2}.get(name, int(context.has_b_frames))


def remux(data: bytes, container: str, folder: Path, *, copies: int = 1, **options: str) -> bytes:
    """Returns the packets of a file in another container, each stream `copies` times."""
    path = folder / "remuxed"
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(str(path), "w", format=container, options=options) as target,
    ):
        streams = [[target.add_stream_from_template(stream) for stream in source.streams] for _ in range(copies)]
        for packet in source.demux():
            if packet.dts is None:
                continue
            for copy in streams:
                made = av.Packet(bytes(packet))
                made.pts, made.dts, made.duration = packet.pts, packet.dts, packet.duration
                made.time_base, made.is_keyframe = packet.time_base, packet.is_keyframe
                made.stream = copy[packet.stream_index]
                target.mux(made)
    return path.read_bytes()


def with_cover(folder: Path) -> bytes:
    """Returns an audio file with an image attached."""
    path = folder / "cover.m4a"
    with (
        av.open(io.BytesIO(audio_file("aac-m4a"))) as source,
        av.open(io.BytesIO(video_file("mjpeg-mp4"))) as images,
        av.open(str(path), "w", format="mp4") as target,
    ):
        sound, cover = (target.add_stream_from_template(one.streams[0]) for one in (source, images))
        cover.disposition = av.stream.Disposition.attached_pic
        packets = [next(images.demux()), *(packet for packet in source.demux() if packet.dts is not None)]
        for number, packet in enumerate(packets):
            packet.stream = sound if number else cover
            target.mux(packet)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("container", "options"),
    [
        ("mp4", {"movflags": "faststart"}),
        ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
        ("mp4", {"movflags": "dash+cmaf", "frag_duration": "500000"}),
        ("matroska", {}),
        ("flv", {}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_other_layouts_of_the_same_packets(tmp_path: Path, container: str, options: dict[str, str]) -> None:
    data = remux(video_file("h264-aac-mp4"), container, tmp_path, **options)
    index = read_media_index(pack_media_index(index_of(data)))
    with MediaFile(data) as file:
        assert index.video is not None
        assert index.audio is not None
        assert_equal(index.video.frames, VideoReader(file).index)
        assert_equal(index.audio.audio, AudioReader(file).index)


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_several_streams(tmp_path: Path, container: str) -> None:
    data = remux(video_file("h264-aac-mp4"), container, tmp_path, copies=2)
    index = read_media_index(pack_media_index(index_of(data)))
    assert [facts.kind for facts in index.streams] == ["video", "audio"] * 2
    assert index.video is not None
    assert index.audio is not None
    assert index.stream(0) is index.video
    assert index.stream(1) is index.audio
    assert index.stream(2) is None, "nothing decodes it"


def test_a_cover_is_not_a_video(tmp_path: Path) -> None:
    index = read_media_index(pack_media_index(index_of(with_cover(tmp_path))))
    assert [facts.is_cover for facts in index.streams] == [False, True]
    assert index.video is None
    assert index.audio is not None


def test_of_a_path(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(video_file("h264-aac-mp4"))
    assert_equal(index_of(str(path)), index_of(video_file("h264-aac-mp4")))
    with path.open("rb") as stream, pytest.raises(ConfigError, match=r"the file is a stream\. Give its bytes"):
        index_of(stream)  # type: ignore[arg-type]


STRIPPED = element(
    ENCODING,
    element(b"\x50\x31", b"\0") + element(COMPRESSION, element(b"\x42\x54", b"\3") + element(b"\x42\x55", b"\0\0")),
)
"""Header stripping: two zeros before the content of each packet are not stored."""


BROKEN = ("empty", "text", "html", "zeros", "mp4-header-only", "mp4-ten-million-frames", "webm-header-only")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: file_of("h264-ts"), "not stored in one piece.*MPEG-TS"),
        (lambda folder: remux(video_file("mpeg4-mp4"), "mpeg", folder), "not stored in one piece"),
        (lambda folder: with_encodings(video_file("h264-mkv"), 1, STRIPPED), "not as decoders receive them"),
        (lambda folder: encrypted_mp4(muxer_options=CENC), "Its video stream is encrypted"),
        *((lambda folder, name=name: broken_files()[name], ".") for name in BROKEN),
    ],
    ids=["ts", "ps", "stripped", "encrypted", *BROKEN],
)
def test_what_has_to_be_read_whole_says_why(tmp_path: Path, make: Any, reason: str) -> None:
    data = make(tmp_path)
    with pytest.raises(DecodeError, match=reason):
        index_of(data)
    entry = MediaIndexer()(data)
    assert len(entry) < 400
    assert reason_in_entry(entry)


def test_an_index_has_no_reason() -> None:
    entry = MediaIndexer()(video_file("h264-mp4"))
    assert reason_in_entry(entry) == ""
    assert_equal(read_media_index(entry), index_of(video_file("h264-mp4")))


def long_index(seconds: int, *, with_audio: bool) -> MediaIndex:
    """Returns the index of a video of 30 frames a second with B-frames, interleaved with AAC, of random sizes."""
    index = index_of(video_file("h264-aac-mp4"))
    assert index.video is not None
    assert index.audio is not None
    assert index.audio.audio is not None
    random = np.random.default_rng(1)
    frames, sounds = 30 * seconds, 44100 * seconds // 1024
    number = np.arange(frames)
    is_key = number % 60 == 0
    sizes = np.where(is_key, random.integers(20_000, 90_000, frames), random.lognormal(8, 1, frames).astype(np.int64))
    audio_sizes = random.integers(300, 420, sounds)
    times = np.concatenate((number / 30, np.arange(sounds) * 1024 / 44100))
    order = np.argsort(times, kind="stable") if with_audio else number
    ends = np.cumsum(np.concatenate((sizes, audio_sizes))[order])
    places = np.empty(len(order), np.int64)
    places[order] = ends - np.concatenate((sizes, audio_sizes))[order] + 48
    shown = number + np.where(is_key, 0, np.array([2, 0, -1])[number % 3])
    video_packets = PacketTable(
        512 * shown, 512 * (number - 2), np.full(frames, 512), places[:frames], is_key, np.zeros(frames, bool)
    )
    video_packets.pts[:] = 512 * np.argsort(np.argsort(shown, kind="stable"))
    positions = order_by_time(video_packets)
    listed = list_frames(
        video_packets,
        positions,
        video_packets.pts[positions],
        Fraction(1, 15360),
        is_intra_only=False,
        proven=False,
    )
    facts = replace(index.video.facts, time_base=Fraction(1, 15360))
    video = replace(
        index.video,
        facts=facts,
        packets=video_packets,
        payload_offsets=places[:frames],
        sizes=sizes,
        checks=random.integers(0, 1 << 16, frames).astype(np.uint16),
        frames=listed,
    )
    audio = None
    if with_audio:
        pts = 1024 * np.arange(sounds)
        audio_packets = PacketTable(
            pts, pts, np.full(sounds, 1024), places[frames:], np.ones(sounds, bool), np.zeros(sounds, bool)
        )
        heard = replace(
            index.audio.audio, starts=1024 * np.arange(sounds + 1), pts=pts, sizes=audio_sizes, span_starts=pts[:1]
        )
        audio = replace(
            index.audio,
            packets=audio_packets,
            payload_offsets=places[frames:],
            sizes=audio_sizes,
            checks=random.integers(0, 1 << 16, -(-sounds // 8)).astype(np.uint16),
            skips={},
            audio=heard,
        )
    streams = (facts, *index.streams[1:])
    return replace(index, size_bytes=int(ends[-1]) + 48, streams=streams, video=video, audio=audio)


@pytest.mark.parametrize(
    ("seconds", "with_audio"),
    [(10, False), (3600, False), (10, True), (3600, True)],
    ids=["short", "hour", "short with audio", "hour with audio"],
)
def test_few_bytes_per_frame(seconds: int, with_audio: bool) -> None:
    index = long_index(seconds, with_audio=with_audio)
    stored = pack_media_index(index)
    assert_equal(read_media_index(stored), index)
    assert len(stored) <= FRAME_BYTES * 30 * seconds


# --- damaged, hostile and lying bytes ---------------------------------------------------------------------------------


def checked(content: bytes) -> bytes:
    """Returns bytes of an index with the right checksum."""
    return content[:1] + zlib.crc32(content[5:]).to_bytes(4, "little") + content[5:]


def packed_part(stored: bytes) -> tuple[bytes, bytes]:
    """Returns (the part that is compressed, the checksums)."""
    from energon_dali.av.index_dictionary import DICTIONARY

    size = int.from_bytes(stored[9:13], "little")
    content = zlib.decompressobj(-15, zdict=DICTIONARY).decompress(stored[13 : 13 + size])
    return content, stored[13 + size :]


def repacked(content: bytes, checks: bytes) -> bytes:
    from energon_dali.av.index_dictionary import DICTIONARY

    compressor = zlib.compressobj(1, zlib.DEFLATED, -15, zdict=DICTIONARY)
    packed = compressor.compress(content) + compressor.flush()
    sizes = len(content).to_bytes(4, "little") + len(packed).to_bytes(4, "little")
    return checked(b"\1" + bytes(4) + sizes + packed + checks)


def mutations(content: bytes, count: int) -> Iterator[bytes]:
    random = np.random.default_rng(3)
    for _ in range(count):
        changed = bytearray(content)
        at = int(random.integers(len(changed)))
        kind = random.integers(4)
        if kind == 0:
            changed[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            changed[at : at + 4] = random.bytes(4)
        elif kind == 2:
            del changed[at : at + int(random.integers(1, 9))]
        else:
            changed[at:at] = bytes([255]) * int(random.integers(1, 12))
        yield bytes(changed)


def read_or_refuse(stored: bytes) -> MediaIndex | None:
    """Returns an index that contradicts nothing that a reader relies on, None if the bytes are refused."""
    try:
        index = read_media_index(stored)
    except DatasetFormatError:
        return None
    for table in (index.video, index.audio):
        if table is not None:
            check_table(table, index.size_bytes)
    return index


def check_table(table: StreamIndex, size_bytes: int) -> None:
    count = len(table)
    assert (table.payload_offsets >= 0).all()
    assert (table.sizes > 0).all()
    assert (table.payload_offsets + table.sizes <= size_bytes).all()
    assert len(table.packets) == len(table.packets.dts) == len(table.payload_offsets) == count
    assert len(table.checks) == -(-count // table.check_step)
    if table.frames is not None:
        assert len(table.frames) > 0
        assert ((table.frames.positions >= 0) & (table.frames.positions < count)).all()
        assert ((table.frames.starts >= 0) & (table.frames.starts < count)).all()
        assert (np.diff(table.frames.pts) >= 0).all()
    if table.audio is not None:
        assert len(table.audio.starts) == count + 1
        assert (np.diff(table.audio.starts) >= 0).all()


DAMAGED = ("h264-aac-mp4", "mpeg4-mp3-avi", "opus-ogg", "h264-edit-two-mp4")


@pytest.mark.parametrize("name", DAMAGED)
def test_any_flipped_bit_is_noticed(name: str) -> None:
    stored = pack_media_index(index_of(file_of(name)))
    for at in range(len(stored)):
        changed = stored[:at] + bytes([stored[at] ^ 1 << at % 8]) + stored[at + 1 :]
        assert read_or_refuse(changed) is None
        assert read_or_refuse(stored[:at]) is None
    assert read_or_refuse(stored + b"\0") is None


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.sweep)])
def test_lies_with_the_right_checksum_are_refused_or_harmless(name: str, count: int) -> None:
    stored = pack_media_index(index_of(file_of(name)))
    content, checks = packed_part(stored)
    assert read_or_refuse(repacked(content, checks)) is not None
    tracemalloc.start()
    try:
        refused = sum(read_or_refuse(repacked(changed, checks)) is None for changed in mutations(content, count))
        for changed in mutations(stored, count):
            read_or_refuse(checked(changed))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > count // 2
    assert peak < 16 << 20


def test_damage_says_what_to_do() -> None:
    with pytest.raises(DatasetFormatError, match=r"its checksum is wrong\)\. Run `energon-dali prepare-media`"):
        read_media_index(pack_media_index(index_of(video_file("h264-mp4")))[:-1])
    with pytest.raises(DatasetFormatError, match="version 9; this program reads version 1"):
        read_media_index(bytes([9]) * 40)


def test_a_small_index_cannot_claim_millions_of_packets() -> None:
    content, checks = packed_part(pack_media_index(index_of(video_file("h264-mp4"))))
    number = ColumnWriter()
    number.number(40)
    huge = ColumnWriter()
    huge.number(1 << 40)
    assert content.count(bytes(number.buffer)) >= 1
    at = content.rindex(bytes(number.buffer), 0, len(content) // 2 + 60)
    for stored in (
        repacked(content[:at] + bytes(huge.buffer) + content[at + 1 :], checks),
        repacked(bytes(1 << 24), b""),  # 16 MiB of zeros take 16 KiB
    ):
        tracemalloc.start()
        with pytest.raises(DatasetFormatError):
            read_media_index(stored)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 80 << 20


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("kind", ["zeros", "line", "small", "large", "missing", "all missing"])
def test_columns_are_stored_exactly(kind: str, size: int) -> None:
    random = np.random.default_rng(size)
    values = {
        "zeros": np.zeros(size, np.int64),
        "line": 7 + 512 * np.arange(size),
        "small": random.integers(-3, 300, size),
        "large": random.integers(NO_TIME + 1, np.iinfo(np.int64).max, size),
        "missing": np.where(random.random(size) < 0.3, NO_TIME, random.integers(0, 1 << 40, size)),
        "all missing": np.full(size, NO_TIME),
    }[kind]
    writer = ColumnWriter()
    writer.column(values)
    writer.bits(values > 5)
    writer.number(-(1 << 63))
    writer.number((1 << 63) - 1)
    reader = ColumnReader(bytes(writer.buffer))
    found = reader.column(size)
    assert np.array_equal(found, values)
    assert np.array_equal(reader.bits(size), values > 5)
    assert (reader.number(), reader.number()) == (-(1 << 63), (1 << 63) - 1)
    reader.finish()
    with pytest.raises(ValueError, match="bytes are missing"):
        reader.take(1)
    if kind == "line" and size == 100:
        assert len(writer.buffer) < 45


def test_the_decoder_of_the_whole_file_counts_the_same_frames() -> None:
    """A recipe that no other test of the index has, end to end."""
    data = encode_video(VideoRecipe(frames=75, b_frames=3, gop=25, audio="aac", container="mov"))
    index = read_media_index(MediaIndexer()(data))
    with AVDecoder(data) as decoder:
        assert index.video is not None
        assert index.audio is not None
        assert index.video.frames is not None
        assert index.audio.audio is not None
        metadata = decoder.get_metadata(get_audio_num_samples=True)
        assert len(index.video.frames) == metadata.video_num_frames == 75
        assert len(index.audio.audio) == metadata.audio_num_samples
