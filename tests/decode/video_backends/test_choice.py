"""Which backend a video gets, by file and by what a GPU says; and what a user may ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from energon_dali.decode import DaliDecoder
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali import thresholds
from energon_dali.decode.video_backends import base, torchcodec_backend
from energon_dali.decode.video_backends.base import VideoBackend, VideoDevice
from energon_dali.decode.video_backends.choice import BACKENDS, choose_backend
from energon_dali.decode.video_backends.nvdec import CodecLimits, Nvdec
from energon_dali.errors import ConfigError
from tests.av.corpus import VideoRecipe, encode_video
from tests.decode.video_backends.test_backends import handle_of

SIDES = CodecLimits((48, 4096), (16, 4096), 65_536, 7)
HOPPER = Nvdec(dict.fromkeys(("h264", "hevc", "vp9", "mpeg4"), SIDES))
ADA = Nvdec({**HOPPER.codecs, "av1": SIDES})
SIZE = (320, 240)
FILES = {
    "whole": VideoRecipe("h264", "mp4", size=SIZE, frames=4),
    "cut": VideoRecipe("h264", "mp4", size=(320, 246), frames=4),
    "odd": VideoRecipe("vp9", "webm", size=(321, 241), frames=4),
    "10 bit": VideoRecipe("hevc", "mkv", size=SIZE, frames=4, gop=1000, pixel_format="yuv420p10le"),
    "4:4:4": VideoRecipe("h264", "mp4", size=SIZE, frames=4, pixel_format="yuv444p"),
    "av1": VideoRecipe("av1", "mp4", size=SIZE, frames=4),
    "rotated": VideoRecipe("h264", "mp4", size=SIZE, frames=4, rotation=90),
    "vp8": VideoRecipe("vp8", "webm", size=SIZE, frames=4),
}


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_finds", lambda module: True)
    monkeypatch.setattr(torchcodec_backend, "_version", lambda: (0, 17))


def chosen(handle: ClipsHandle, where: VideoDevice, **options: Any) -> str:
    handle.backend = None
    return choose_backend(handle, DaliDecoder(av_decode=handle.spec, **options).engine_options, where).name


@pytest.mark.parametrize("name", FILES)
def test_what_hopper_and_ada_decode_of_each_file(name: str) -> None:
    handle = handle_of(encode_video(FILES[name]), VideoClips(1, 2))
    if name == "av1":  # the encoder repeats its header with other flags, so the frames may differ
        handle.uniform_frames = True
    wanted = {
        "whole": ["dali", "torchcodec", "pynvvideocodec"],
        "cut": ["pyav", "torchcodec", "pynvvideocodec"],
        "rotated": ["dali", "pyav", "pynvvideocodec"],  # torchcodec rotates frames, and nobody asked for that
    }.get(name, ["pyav"] * 3)
    named = ("dali", "torchcodec", "pynvvideocodec")
    found = [chosen(handle, VideoDevice("gpu", HOPPER), video_backend=each) for each in named]
    assert found == wanted
    on_ada = [chosen(handle, VideoDevice("gpu", ADA), video_backend=each) for each in named]
    assert on_ada == (["dali", "torchcodec", "pynvvideocodec"] if name == "av1" else wanted)


def test_auto_takes_dali_beyond_its_threshold_and_what_the_table_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    where = VideoDevice("gpu", HOPPER)
    cut = handle_of(encode_video(FILES["cut"]), VideoClips(1, 2))
    whole = handle_of(encode_video(FILES["whole"]), VideoClips(1, 2))
    assert [chosen(each, where) for each in (whole, cut)] == ["pyav", "pyav"]  # too few frames
    whole.frames_to_decode = cut.frames_to_decode = 1000
    assert [chosen(each, where) for each in (whole, cut)] == ["dali", "pyav"]
    monkeypatch.setitem(thresholds.PREFERRED_BACKENDS, "gpu", ("dali", "torchcodec"))
    assert [chosen(each, where) for each in (whole, cut)] == ["dali", "torchcodec"]


def test_before_0_17_torchcodec_gets_frames_that_are_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchcodec_backend, "_version", lambda: (0, 16))
    where = VideoDevice("gpu", HOPPER)
    handles = [handle_of(encode_video(FILES[name]), VideoClips(1, 2)) for name in ("whole", "cut")]
    assert [chosen(each, where, video_backend="torchcodec") for each in handles] == ["torchcodec", "pyav"]


def test_without_nvdec_or_for_other_pixels_it_is_pyav() -> None:
    handle = handle_of(encode_video(FILES["whole"]), VideoClips(1, 2))
    assert chosen(handle, VideoDevice("gpu", Nvdec({}, "it has none")), video_backend="torchcodec") == "pyav"
    assert chosen(handle, VideoDevice("gpu", HOPPER), video_backend="pyav") == "pyav"
    handle.rotation = 90
    assert chosen(handle, VideoDevice("gpu", HOPPER), video_backend="dali") == "pyav"
    handle.rotation, handle.spec = 0, replace(handle.spec, damaged="partial")
    assert chosen(handle, VideoDevice("gpu", HOPPER), video_backend="dali") == "pyav"


def test_the_choice_of_a_worker_holds_for_its_kind_of_device() -> None:
    handle = handle_of(encode_video(FILES["vp8"]), VideoClips(1, 2))
    handle.backend = "dali", "gpu"
    options = DaliDecoder(av_decode=handle.spec, video_backend="dali").engine_options
    assert choose_backend(handle, options, VideoDevice("gpu", HOPPER)).name == "dali"
    handle.backend = "pyav", "gpu"
    assert choose_backend(handle, options, VideoDevice("cpu")).name == "dali"  # the rank found no GPU after all


@pytest.mark.parametrize(
    ("option", "device", "words"),
    [
        ("ffmpeg", "auto", ["'ffmpeg' is unknown", '"auto", "pyav", "dali", "torchcodec", "pynvvideocodec"']),
        (3, "auto", ["video_backend=3 is unknown"]),
        ("pynvvideocodec", "cpu", ["decodes on GPUs alone", 'video_backend="auto"']),
    ],
)
def test_options_that_cannot_work(option: Any, device: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        DaliDecoder(av_decode=VideoClips(), video_backend=option, video_decode_device=device)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["torchcodec", "pynvvideocodec"])
def test_a_library_that_is_not_installed(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_finds", lambda module: module in ("av", "nvidia.dali"))
    with pytest.raises(ConfigError) as caught:
        DaliDecoder(av_decode=VideoClips(), video_backend=name)
    said = str(caught.value)
    assert f'pip install "energon-dali[{name}]"' in said
    assert '"pyav", "dali"' in said


def test_the_option_is_part_of_the_config() -> None:
    assert DaliDecoder(video_backend="pyav").config()["video_backend"] == "pyav"


def test_every_backend_says_where_it_decodes() -> None:
    assert {name: sorted(backend.kinds) for name, backend in BACKENDS.items()} == {
        "pyav": ["cpu"],
        "dali": ["cpu", "gpu"],
        "torchcodec": ["cpu", "gpu"],
        "pynvvideocodec": ["gpu"],
    }
    assert all(isinstance(backend, VideoBackend) for backend in BACKENDS.values())
    assert [BACKENDS[name].runs_in_worker("cpu") for name in ("pyav", "torchcodec", "dali")] == [True, True, False]
