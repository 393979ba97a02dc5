"""What each backend makes of chosen frames, next to PyAV: torchcodec's own where it is installed, otherwise fakes."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import Decoded, DecodeFailure, SampleDecoder
from energon_dali.decode.clips import ClipAudio, ClipsHandle, VideoClips
from energon_dali.decode.dali.runtime import device as devices
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends import pynvvideocodec_backend, torchcodec_backend
from energon_dali.decode.video_backends.base import VideoDevice
from energon_dali.decode.video_backends.choice import BACKENDS
from energon_dali.decode.video_backends.frame_backend import FrameBackend, finish_clips
from energon_dali.decode.video_backends.nv12 import nv12_to_rgb
from energon_dali.errors import DeviceFailedError
from tests.av.corpus import VIDEOS, VideoRecipe, encode_video, video_file
from tests.decode.tolerance import CLIPS, TORCHCODEC_CPU, explain_difference
from tests.decode.video_backends.fake_libraries import FakePyNvVideoCodec, FakeTorchcodec, all_frames
from tests.fake_cuda import FakeCuda, Stream

CPU, GPU = Device("cpu"), Device("gpu", 0)
RANDOM = VideoClips(3, 4, clip_duration_seconds=0.4, sampling="random", layout="FHWC")
TORCHCODEC: Any = BACKENDS["torchcodec"]
PYNVVIDEOCODEC: Any = BACKENDS["pynvvideocodec"]


def needs_torchcodec() -> None:
    """Skips the test where torchcodec cannot be loaded."""
    try:
        torchcodec_backend._load()
    except ImportError as error:
        pytest.skip(f"torchcodec is not there: {str(error)[:80]}")


def handle_of(data: bytes, spec: VideoClips = RANDOM, seed: int = 1) -> ClipsHandle:
    handle, file = stage_clips("mp4", data, spec, seed=seed)
    file.close()
    return handle


def clips_of(backend: FrameBackend, handle: ClipsHandle, device: Device = CPU, route: str = "") -> Any:
    outcome = backend.decode(handle, device, Stream(0) if device.kind == "gpu" else None)
    assert isinstance(outcome, Decoded), outcome
    assert outcome.route == (route or backend.routes[device.kind])
    return outcome.value


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: Any) -> None:
    assert ours.shape == theirs.shape
    for a, b in zip(ours.flatten(0, 1).numpy(), theirs.flatten(0, 1).numpy(), strict=True):
        assert explain_difference(a, b, tolerance) is None


# --- torchcodec on the CPU, where it is installed ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, (60, 44)], ids=["kept", "resized"])
@pytest.mark.parametrize(
    "name",
    ["h264-b-mp4", "h264-vfr-b-mkv", "hevc-mp4", "vp9-webm", "av1-mp4", "colour-vp9-bt709-limited", "h264-odd-mp4"],
)
def test_torchcodec_on_the_cpu_gives_pyavs_pixels(name: str, size: Any) -> None:
    """At the size of the video bit for bit, for random cuts: a frame of another number is far away."""
    needs_torchcodec()
    data = video_file(name)
    for seed in range(4):
        spec = VideoClips(3, 4, clip_duration_seconds=0.4, sampling="random", layout="FHWC", size=size)
        handle = handle_of(data, spec, seed)
        assert not TORCHCODEC.refusal(handle, VideoDevice("cpu"))
        ours = clips_of(TORCHCODEC, handle)
        theirs = SampleDecoder(av_decode=spec).stage("mp4", data, seed=seed)
        assert torch.equal(ours.timestamps, theirs.timestamps)
        if size is None:
            assert_near(ours.frames, theirs.frames, TORCHCODEC_CPU)
        elif not VIDEOS[name].saturated:  # there PyAV's fast conversion is far from its own exact one
            assert_near(ours.frames, theirs.frames, CLIPS)


def test_torchcodec_refuses_what_it_would_show_in_another_way() -> None:
    refused = {
        name: TORCHCODEC.refusal(handle_of(video_file(name)), VideoDevice("cpu"))
        for name in ("h264-10bit-mp4", "h264-edit-two-mp4", "h264-mp4")
    }
    rotated = handle_of(encode_video(VideoRecipe("h264", "mp4", rotation=180)))
    untagged_hd = handle_of(encode_video(VideoRecipe("h264", "mp4", size=(1280, 720), frames=2)), VideoClips(1, 2))
    assert [bool(why) for why in refused.values()] == [True, True, False]
    assert "rotates" in TORCHCODEC.refusal(rotated, VideoDevice("cpu"))
    assert "bt709" in TORCHCODEC.refusal(untagged_hd, VideoDevice("cpu"))


def test_on_a_gpu_the_packets_alone_say_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.decode.dali.video.test_video import with_colour_matrix

    monkeypatch.setattr(torchcodec_backend, "_version", lambda: (0, 17))
    plain = encode_video(VideoRecipe("h264", "mkv", size=(320, 240), frames=4))
    tagged = with_colour_matrix(plain, 1)
    for data, matrix, refused in ((plain, "bt601", False), (tagged, "bt709", True)):
        handle = handle_of(data, VideoClips(1, 2))
        assert handle.find_colour().matrix == matrix
        assert bool(TORCHCODEC.refusal(handle, VideoDevice("gpu"))) == refused


# --- fakes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def torchcodec(monkeypatch: pytest.MonkeyPatch) -> FakeTorchcodec:
    library = FakeTorchcodec()
    FakeCuda(gpus=1).install(monkeypatch)
    monkeypatch.setattr(torchcodec_backend, "_load", library.loaded)
    return library


@pytest.fixture
def pynvvideocodec(monkeypatch: pytest.MonkeyPatch) -> FakePyNvVideoCodec:
    library = FakePyNvVideoCodec()
    FakeCuda(gpus=1).install(monkeypatch)
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", library)  # type: ignore[arg-type]
    monkeypatch.setattr(pynvvideocodec_backend, "_of_thread", threading.local())
    return library


@pytest.mark.parametrize("layout", ["FCHW", "FHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_frames_by_number_in_every_form(torchcodec: FakeTorchcodec, dtype: Any, layout: Any) -> None:
    data = video_file("h264-b-mp4")
    spec = VideoClips(at=(0.5, 0.0, 0.45), sampling="at", frames_per_clip=5, dtype=dtype, layout=layout)
    handle = handle_of(data, spec)
    assert (np.diff(handle.frame_indices.ravel()) <= 0).any()
    levels = all_frames(data, "rgb24")[torch.from_numpy(handle.frame_indices)]
    wanted = levels if dtype == "uint8" else (levels.to(torch.float32) / 255).to(getattr(torch, dtype))
    frames = clips_of(TORCHCODEC, handle, GPU).frames
    assert torch.equal(frames, wanted if layout == "FHWC" else wanted.permute(0, 1, 4, 2, 3))
    assert frames.is_contiguous()
    assert torchcodec.devices == ["cuda:0"]


def test_frames_of_a_gpu_are_resized_there() -> None:
    data = video_file("h264-b-mp4")
    spec = VideoClips(2, 3, size=(60, 44), layout="FHWC")
    handle = handle_of(data, spec)
    frames = finish_clips(all_frames(data, "rgb24")[np.unique(handle.frame_indices)], handle)
    assert_near(frames, SampleDecoder(av_decode=spec).stage("mp4", data, seed=1).frames, CLIPS)


@pytest.mark.parametrize("fault", ["bad file", "other frames", "on the CPU"])
def test_what_a_library_gives_up_pyav_decodes(torchcodec: FakeTorchcodec, fault: str) -> None:
    torchcodec.error = RuntimeError("Could not push packet to decoder") if fault == "bad file" else None
    torchcodec.extra_frames = int(fault == "other frames")
    torchcodec.falls_back = fault == "on the CPU"
    data = video_file("h264-b-mp4")
    clips = clips_of(TORCHCODEC, handle_of(data), GPU, route="fallback")
    assert torch.equal(clips.frames, SampleDecoder(av_decode=RANDOM).stage("mp4", data, seed=1).frames)


def test_a_library_that_cannot_be_loaded_is_named_once(
    torchcodec: FakeTorchcodec, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_said", set())
    torchcodec.error = ImportError("libavcodec.so.61: cannot open shared object file")
    for _ in range(2):
        clips_of(TORCHCODEC, handle_of(video_file("h264-mp4")), GPU, route="fallback")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "libavcodec" in record.message


def test_full_memory_is_not_a_bad_sample(torchcodec: FakeTorchcodec) -> None:
    torchcodec.error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(DeviceFailedError, match="torchcodec failed on gpu 0"):
        TORCHCODEC.decode(handle_of(video_file("h264-mp4")), GPU)


def test_frames_that_nobody_has_are_a_failure(torchcodec: FakeTorchcodec) -> None:
    handle = handle_of(video_file("h264-mp4"))
    handle.frame_indices = handle.frame_indices + 1000
    assert isinstance(TORCHCODEC.decode(handle, GPU), DecodeFailure)


def test_audio_is_that_of_pyav(torchcodec: FakeTorchcodec) -> None:
    spec = VideoClips(2, 4, clip_duration_seconds=0.5, audio=ClipAudio(sample_rate=16_000, channels=1))
    data = video_file("h264-aac-mp4")
    ours = clips_of(TORCHCODEC, handle_of(data, spec), GPU)
    assert torch.equal(ours.audio, SampleDecoder(av_decode=spec).stage("mp4", data, seed=1).audio)


@pytest.mark.parametrize("colour", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("full_range", [False, True])
def test_nv12_becomes_what_pyav_makes_of_it(colour: str, full_range: bool) -> None:
    recipe = VideoRecipe("h264", "mp4", size=(96, 64), frames=6, colour=colour, full_range=full_range)
    data = encode_video(recipe)
    handle = handle_of(data, VideoClips(1, 6, layout="FHWC"))
    frames = nv12_to_rgb(all_frames(data, "nv12"), handle.find_colour())
    theirs = SampleDecoder(av_decode=handle.spec).stage("mp4", data).frames
    assert_near(frames[None], theirs, CLIPS)


def test_pynvvideocodec_reads_frames_by_number_and_keeps_its_decoder(pynvvideocodec: FakePyNvVideoCodec) -> None:
    for number, name in enumerate(("h264-b-mp4", "vp9-webm", "h264-b-mp4")):
        data = video_file(name)
        clips = clips_of(PYNVVIDEOCODEC, handle_of(data), GPU)
        assert_near(clips.frames, SampleDecoder(av_decode=RANDOM).stage("mp4", data, seed=1).frames, CLIPS)
        assert pynvvideocodec.reconfigured == number
    (options,) = pynvvideocodec.made
    assert options["gpu_id"] == 0
    assert options["output_color_type"] == "native"


def test_after_a_failure_pynvvideocodec_gets_a_new_decoder(pynvvideocodec: FakePyNvVideoCodec) -> None:
    handle = handle_of(video_file("h264-b-mp4"))
    clips_of(PYNVVIDEOCODEC, handle, GPU)
    pynvvideocodec.error = IndexError("no such frame")
    clips_of(PYNVVIDEOCODEC, handle, GPU, route="fallback")
    pynvvideocodec.error = None
    clips_of(PYNVVIDEOCODEC, handle, GPU)
    assert len(pynvvideocodec.made) == 2


def test_every_backend_reads_the_same_frames(torchcodec: FakeTorchcodec, pynvvideocodec: FakePyNvVideoCodec) -> None:
    handle = handle_of(video_file("h264-b-mp4"))
    wanted = BACKENDS["pyav"].read(handle, CPU)  # type: ignore[attr-defined]
    for backend in (TORCHCODEC, PYNVVIDEOCODEC):
        assert_near(backend.read(handle, GPU)[None], wanted[None], CLIPS)
    assert VIDEOS["h264-b-mp4"].b_frames
