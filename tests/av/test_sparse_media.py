"""A file that is decoded by its index, with the bytes of the wanted packets alone, is the same file."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from energon_dali.av import AudioReader, MediaFile, VideoReader
from energon_dali.av.media_index import MediaIndex
from energon_dali.av.media_indexing import index_media
from energon_dali.av.packet_decoder import PacketDecoder
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.stored_index import pack_media_index, read_media_index
from energon_dali.errors import DecodeError
from energon_dali.worker_config import IdleCores
from tests.av.corpus import AUDIOS, VIDEOS, audio_file, encode_video, video_file
from tests.av.test_video_reader import HARD, random_sets
from tests.part import sampled

READ_WHOLE = ("h264-ts",)
"""Files without an index: their packets are not in one piece."""


def media_file(name: str) -> bytes:
    """Returns a file of the corpus, or one that reveals wrong places to start decoding."""
    if name in AUDIOS:
        return audio_file(name)
    return video_file(name) if name in VIDEOS else encode_video(HARD[name])


def indexed(data: bytes) -> MediaIndex:
    """Returns the index of a file, as it is stored."""
    with MediaFile(data) as file:
        return read_media_index(pack_media_index(index_media(file)))


def sparse(data: bytes, index: MediaIndex, ranges: Sequence[tuple[int, int]]) -> SparseMedia:
    """Returns a file of which some ranges are in memory, and the rest can be fetched."""

    def fetch(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return [data[offset : offset + size] for offset, size in wanted]

    return SparseMedia(index, [(offset, data[offset : offset + size]) for offset, size in ranges], fetch)


@pytest.mark.parametrize("name", sampled([*VIDEOS, *(name for name in HARD if name not in READ_WHOLE)], 3))
def test_frames_and_times_are_those_of_the_whole_file_from_their_packets_alone(name: str) -> None:
    data = media_file(name)
    index = indexed(data)
    assert index.video is not None
    whole = VideoReader(MediaFile(data))

    for wanted in random_sets(len(whole.index), seed=7):
        needed = VideoReader(MediaFile(SparseMedia(index))).packets_of(wanted)
        media = sparse(data, index, index.video.places(needed))
        reader = VideoReader(MediaFile(media))
        np.testing.assert_array_equal(reader.read(wanted), whole.read(wanted), err_msg=f"{wanted = }")
        np.testing.assert_array_equal(reader.index.times, whole.index.times)
        assert (reader.colours, reader.rotation) == (whole.colours, whole.rotation)
        assert media.fetched_on_demand == 0


SOUNDS = [*AUDIOS, *(name for name, recipe in VIDEOS.items() if recipe.audio is not None)]


@pytest.mark.parametrize("name", sampled(SOUNDS, 3))
def test_samples_are_those_of_the_whole_file_from_their_packets_alone(name: str) -> None:
    data = media_file(name)
    index = indexed(data)
    assert index.audio is not None
    whole = AudioReader(MediaFile(data))
    rng = np.random.default_rng(7)

    for _ in range(8):
        start = int(rng.integers(0, len(whole.index)))
        stop = min(len(whole.index), start + int(rng.integers(1, len(whole.index) // 4 + 2)))
        needed = AudioReader(MediaFile(SparseMedia(index))).packets_of([(start, stop)], "samples")
        media = sparse(data, index, index.audio.places(needed))
        found, expected = AudioReader(MediaFile(media)).read(start, stop), whole.read(start, stop)
        assert (found.shape, found.tobytes()) == (expected.shape, expected.tobytes()), f"{start = }, {stop = }"
        assert media.fetched_on_demand == 0


@pytest.mark.parametrize("name", ["h264-b-mp4", "vp9-opus-webm"])
def test_what_is_not_in_memory_is_fetched_together_and_counted(name: str) -> None:
    data = video_file(name)
    index = indexed(data)
    assert index.video is not None
    requests: list[Sequence[tuple[int, int]]] = []
    counted: list[int] = []

    def fetch(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        requests.append(wanted)
        return [data[offset : offset + size] for offset, size in wanted]

    media = SparseMedia(index, (), fetch, counted.append)
    reader = VideoReader(MediaFile(media))
    np.testing.assert_array_equal(reader.read([20, 21]), VideoReader(MediaFile(data)).read([20, 21]))

    assert len(requests) == 1
    assert requests[0] == index.video.places(reader.packets_of([20, 21]))
    assert sum(counted) == media.fetched_on_demand == sum(size for _, size in requests[0])


def test_a_container_that_has_to_be_opened_is_read_on_demand() -> None:
    data = video_file("h264-b-mp4")
    media = sparse(data, indexed(data), [])

    reader = VideoReader(MediaFile(media), damaged="partial")
    np.testing.assert_array_equal(reader.read([3, 30]), VideoReader(MediaFile(data)).read([3, 30]))

    assert media.fetched_on_demand > 0


@pytest.mark.parametrize("where", ["changed", "shortened", "moved"])
def test_another_file_than_the_indexed_one_is_an_error(where: str) -> None:
    data = video_file("h264-b-mp4")
    index = indexed(data)
    assert index.video is not None
    offset, size = index.video.places([(0, 0)])[0]
    other = {
        "changed": data[: offset + size - 1] + bytes([data[offset + size - 1] ^ 1]) + data[offset + size :],
        "shortened": data[: offset + size - 1],
        "moved": b"\0" + data,
    }[where]

    def fetch(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return [other[offset : offset + size] for offset, size in wanted]

    with pytest.raises(DecodeError, match="it was shortened" if where == "shortened" else "not what was indexed"):
        VideoReader(MediaFile(SparseMedia(index, (), fetch))).read([0])


def test_a_file_of_which_nothing_more_can_be_read_is_an_error() -> None:
    data = video_file("h264-b-mp4")

    with pytest.raises(DecodeError, match="cannot be"):
        VideoReader(MediaFile(SparseMedia(indexed(data)))).read([0])


def test_it_travels_with_its_ranges() -> None:
    data = video_file("h264-b-mp4")
    index = indexed(data)
    assert index.video is not None
    needed = VideoReader(MediaFile(SparseMedia(index))).packets_of([25])
    media = SparseMedia(index, [(offset, data[offset : offset + size]) for offset, size in index.video.places(needed)])
    buffers: list[pickle.PickleBuffer] = []

    travelled = pickle.loads(pickle.dumps(media, 5, buffer_callback=buffers.append), buffers=buffers)

    assert len(travelled) == len(media) <= sum(len(buffer.raw()) for buffer in buffers)
    np.testing.assert_array_equal(VideoReader(MediaFile(travelled)).read([25]), VideoReader(MediaFile(data)).read([25]))


@pytest.mark.parametrize("name", sampled([*VIDEOS, *(name for name in HARD if name not in READ_WHOLE)], 3))
def test_groups_of_pictures_decoded_at_the_same_time_are_those_of_one_thread(name: str) -> None:
    data = media_file(name)
    index = indexed(data)
    assert index.video is not None
    alone = VideoReader(MediaFile(data, threads=1))

    for wanted in random_sets(len(alone.index), seed=11):
        needed = VideoReader(MediaFile(SparseMedia(index))).packets_of(wanted)
        media = sparse(data, index, index.video.places(needed))
        together = VideoReader(MediaFile(media, threads=3))
        np.testing.assert_array_equal(together.read(wanted), alone.read(wanted), err_msg=f"{wanted = }")


def test_an_error_of_one_of_several_threads_names_the_packet() -> None:
    data = video_file("h264-mp4")
    index = indexed(data)
    assert index.video is not None
    key = int(np.flatnonzero(index.video.packets.is_key)[-1])
    at = int(index.video.payload_offsets[key])
    damaged = data[:at] + bytes(byte ^ 0x55 for byte in data[at : at + 4]) + data[at + 4 :]
    media = sparse(damaged, index, index.video.places([(0, len(index.video) - 1)]))
    last = len(VideoReader(MediaFile(data)).index) - 1

    with pytest.raises(DecodeError, match=f"Packet {key} of its video is not what was indexed"):
        VideoReader(MediaFile(media, threads=3)).read([0, last])


def test_a_worker_decodes_its_first_block_with_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = video_file("h264-mp4")
    index = indexed(data)
    assert index.video is not None
    decoders: list[Any] = []

    def count(*args: Any, **options: Any) -> Any:
        decoders.append(PacketDecoder(*args, **options))
        return decoders[-1]

    monkeypatch.setattr("energon_dali.av.video_reader.PacketDecoder", count)
    media = sparse(data, index, index.video.places([(0, len(index.video) - 1)]))
    last = len(VideoReader(MediaFile(data)).index) - 1
    for cores, expected in ((3, 2), (1, 1)):
        monkeypatch.setattr(IdleCores, "count", cores)
        decoders.clear()
        VideoReader(MediaFile(media)).read([0, last])
        assert len(decoders) == expected  # no more than there are groups of pictures
