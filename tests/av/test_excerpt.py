"""A file of the packets that chosen frames need shows these frames, to every decoder that takes files."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from energon_dali.av import MediaFile, VideoReader
from energon_dali.av.excerpt import CODEC_IDS, excerpt_frames, write_excerpt
from tests.av.corpus import VIDEOS, VideoRecipe, encode_video, video_file
from tests.av.test_sparse_media import indexed, sparse

NAMES = ("h264-b-mp4", "h264-vfr-b-mkv", "hevc-mp4", "vp9-webm", "vp8-mkv", "av1-mp4", "mpeg4-mkv")


def excerpt(data: bytes, wanted: list[int]) -> tuple[bytes, list[int]]:
    """Returns an excerpt, and the numbers of the wanted frames in it."""
    index = indexed(data)
    assert index.video is not None
    runs = VideoReader(MediaFile(sparse(data, index, []))).packets_of(wanted)
    media = sparse(data, index, index.video.places(runs))
    made = write_excerpt(media, index.video, runs)
    assert media.fetched_on_demand == 0
    return made, np.searchsorted(excerpt_frames(index.video, runs), wanted).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_its_frames_are_those_of_the_video(name: str) -> None:
    data = video_file(name)
    assert VIDEOS[name].codec in CODEC_IDS
    whole = VideoReader(MediaFile(data))
    rng = np.random.default_rng(3)
    for count in (1, 3, 7):
        wanted = np.unique(rng.integers(0, len(whole.index), count)).tolist()
        made, numbers = excerpt(data, wanted)
        with MediaFile(made) as file:
            reader = VideoReader(file)
            np.testing.assert_array_equal(reader.read(numbers), whole.read(wanted), err_msg=f"{wanted = }")
            assert reader.colours == whole.colours
            assert file.format == "matroska,webm"


def test_it_keeps_the_colours_that_only_the_container_states() -> None:
    from tests.decode.dali.video.test_video import with_colour_matrix

    data = with_colour_matrix(encode_video(VideoRecipe("h264", "mkv", frames=6)), 1)
    made, numbers = excerpt(data, [2, 4])
    whole = VideoReader(MediaFile(data))
    reader = VideoReader(MediaFile(made))
    assert reader.colours == whole.colours
    assert reader.colours.matrix == "bt709"
    np.testing.assert_array_equal(reader.read(numbers), whole.read([2, 4]))


def test_demuxers_find_its_groups_by_their_cues() -> None:
    data = video_file("h264-b-mp4")
    made, numbers = excerpt(data, [1, 30])
    with av.open(io.BytesIO(made)) as container:
        stream = container.streams.video[0]
        keys = [packet.pts for packet in container.demux(stream) if packet.is_keyframe and packet.size]
        assert len(keys) == 2
        container.seek(int(keys[1]), stream=stream)
        assert next(container.demux(stream)).pts == keys[1]
    assert len(made) < len(data)
    assert numbers[0] == 1
