"""Which sizes of videos reach DALI on a GPU: those that are coded as they are shown."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import av
import pytest

from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali.video.coded_size import shows_whole_frames
from energon_dali.decode.dali.video.eligibility import is_eligible_video, suits_hardware
from energon_dali.decode.dali.video.frame_headers import _find_av1_headers, _read_av1_size, has_uniform_frames
from energon_dali.decode.formats import IrregularHeaderError
from energon_dali.decode.pyav import stage_clips
from energon_dali.demuxers import open_container
from tests.av.corpus import VideoRecipe, encode_video

BASE = VideoRecipe(frames=2, gop=1000)

REACHES_DALI: dict[str, dict[tuple[int, int], bool]] = {
    # x264 codes units of 16 pixels: 360, 714 and 1080 lines are cut from 368, 720 and 1088.
    "h264": {
        (1280, 720): True,
        (1280, 714): False,
        (640, 360): False,
        (640, 368): True,
        (1920, 1080): False,
        (1920, 1088): True,
        (854, 480): False,
        (322, 242): False,
        (720, 576): True,
    },
    # x265 codes units of 16 pixels with its fastest preset.
    "hevc": {(1280, 720): True, (1280, 714): False, (640, 360): False, (1920, 1080): False, (854, 480): False},
    "mpeg4": {(640, 368): True, (640, 360): False, (322, 242): False},
    "vp9": {
        (640, 360): True,
        (1280, 720): True,
        (1280, 714): False,
        (641, 361): False,
        (640, 361): False,
        (322, 242): False,
    },
}
CASES = [(codec, size, reaches) for codec, sizes in REACHES_DALI.items() for size, reaches in sizes.items()]


def reaches_dali(recipe: VideoRecipe) -> bool:
    handle, file = stage_clips(recipe.container, encode_video(recipe), VideoClips(1, 2))
    file.close()
    return is_eligible_video(handle, "gpu")


@pytest.mark.parametrize(
    ("codec", "size", "reaches"), CASES, ids=[f"{codec}-{width}x{height}" for codec, (width, height), _ in CASES]
)
def test_which_sizes_reach_dali(codec: str, size: tuple[int, int], reaches: bool) -> None:
    """Of other sizes DALI 2.4 may take the chroma from the wrong rows, without an error."""
    container = "webm" if codec == "vp9" else "mkv"
    assert reaches_dali(replace(BASE, codec=codec, container=container, size=size)) is reaches


@pytest.mark.parametrize("size", [(640, 360), (1920, 1080)], ids=str)
def test_hevc_of_small_units_is_not_cut(size: tuple[int, int]) -> None:
    """As most encoders make it: 1080 lines are 135 units of 8 pixels."""
    small = (("x265-params", "min-cu-size=8"),)
    assert reaches_dali(replace(BASE, codec="hevc", container="mkv", size=size, encoder_options=small))


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("container", ["mp4", "mkv", "mov"])
def test_the_parameters_of_every_container_are_read(codec: str, container: str) -> None:
    whole = replace(BASE, codec=codec, container=container, size=(320, 240))
    assert reaches_dali(whole)
    assert reaches_dali(replace(whole, b_frames=2))


@pytest.mark.parametrize(
    ("codec", "options", "reaches"),
    [
        ("h264", (("x264-params", "interlaced=1"),), False),
        ("h264", (("x264-params", "crop-rect=0,0,0,16"),), False),
        ("h264", (("x264-params", "cqm=jvt:poc=1"),), True),
        ("h264", (("profile", "baseline"),), True),
        ("hevc", (("x265-params", "temporal-layers=3"),), True),
        ("hevc", (("x265-params", "min-cu-size=32:ctu=64"),), False),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_frames_that_are_cut_or_interlaced_do_not_reach_dali(
    codec: str, options: tuple[tuple[str, str], ...], reaches: bool
) -> None:
    """A file of whole units may still be cut: its encoder chose larger units, or its maker a window."""
    recipe = replace(BASE, codec=codec, size=(320, 240), encoder_options=options)
    assert reaches_dali(recipe) is reaches


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize(
    ("options", "height", "suits"), [("interlaced=1", 240, False), ("poc=1", 242, True), ("cqm=jvt", 240, True)]
)
def test_decoders_that_show_parts_of_frames_do_not_get_interlaced_ones(
    options: str, height: int, suits: bool, container: str
) -> None:
    recipe = replace(BASE, container=container, size=(320, height), encoder_options=(("x264-params", options),))
    handle, file = stage_clips(recipe.container, encode_video(recipe), VideoClips(1, 2))
    file.close()
    assert suits_hardware(handle) is suits


def extradata_of(codec: str) -> bytes:
    with open_container(io.BytesIO(encode_video(replace(BASE, codec=codec, size=(320, 240))))) as container:
        extradata = container.streams.video[0].codec_context.extradata
    assert extradata is not None
    return bytes(extradata)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_a_configuration_that_is_cut_off_or_of_another_kind(codec: str) -> None:
    extradata = extradata_of(codec)
    assert shows_whole_frames(codec, extradata, 320, 240)
    assert not shows_whole_frames(codec, extradata, 320, 239)
    assert not shows_whole_frames(codec, b"", 320, 240)
    assert not shows_whole_frames(codec, b"\0\0\0\1" + extradata, 320, 240)
    for length in range(len(extradata)):
        with contextlib.suppress(IrregularHeaderError, IndexError):  # which `has_uniform_frames` takes as no
            shows_whole_frames(codec, extradata[:length], 320, 240)


def test_headers_of_av1_may_differ_from_the_containers_but_not_from_each_other() -> None:
    """SVT-AV1 repeats its header with other flags."""
    data = encode_video(VideoRecipe("av1", "mp4", size=(320, 240), gop=6, frames=18))
    shape = (320, 240, "yuv420p")
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
        extradata = stream.codec_context.extradata or b""
    (header,) = {unit for packet in packets for unit in _find_av1_headers(memoryview(packet))}
    assert header not in extradata
    assert _read_av1_size(header) == shape[:2]
    assert has_uniform_frames(data, "av1", shape)
    # 9 bits of width and 8 of height follow their numbers of bits; the last one of the width becomes another.
    changed = next(
        other for at in range(8 * len(header)) if _size_or_none(other := _with_bit_flipped(header, at)) == (319, 240)
    )
    assert data.count(header) == 3
    for edited in (data.replace(header, changed, 1), data.replace(header, changed)):
        assert not has_uniform_frames(edited, "av1", shape)


def _with_bit_flipped(header: bytes, at: int) -> bytes:
    value = int.from_bytes(header, "big") ^ 1 << (8 * len(header) - 1 - at)
    return value.to_bytes(len(header), "big")


def _size_or_none(header: bytes) -> tuple[int, int] | None:
    try:
        return _read_av1_size(header)
    except IrregularHeaderError:
        return None
