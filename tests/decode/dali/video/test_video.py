"""Clips from DALI on the CPU: PyAV's frames, colours and times; files that DALI must not get; isolation."""

from __future__ import annotations

import io
import subprocess
from typing import Any

import av
import numpy as np
import pytest
import torch
from energon_dali.kernels.color_matrix import convert_colors

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.av import AVLimits
from energon_dali.decode import Decoded, DecodeFailure
from energon_dali.decode.clips import ClipAudio, ClipsHandle, VideoClips
from energon_dali.decode.dali.runtime.blocks import DeviceMemory
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.failure import raise_if_device_failed
from energon_dali.decode.dali.thresholds import prefers_dali_clips
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.dali.video.engine import DaliVideoEngine, VideoGraph, find_correction, take_frames
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends.choice import BACKENDS
from energon_dali.errors import DeviceFailedError
from energon_dali.samples.kinds import Clips
from tests.av.corpus import VIDEOS, VideoRecipe, encode_video, video_file
from tests.decode.dali.video.uneven_videos import UNEVEN, uneven_video
from tests.decode.tolerance import CLIPS, explain_difference

DALI = BACKENDS["dali"]
EXACT_FLAGS: Any = 0x2 | 0x2000 | 0x40000
"""What DALI's conversion is equal to, bit for bit: swscale's BILINEAR, FULL_CHR_H_INT and ACCURATE_RND. PyAV 17 names
the first alone."""
ON_CPU = [
    name for name, recipe in VIDEOS.items() if recipe.codec in ("vp8", "vp9", "mjpeg") and recipe.container != "avi"
]
TWO_CLIPS = VideoClips(2, 3, stride=2)


def decoder_of(spec: VideoClips) -> DaliDecoder:
    return DaliDecoder(av_decode=spec, video_decode_device="cpu")


def handle_of(data: bytes, spec: VideoClips = TWO_CLIPS, *, seed: int = 0) -> ClipsHandle:
    handle, file = stage_clips("webm", data, spec, seed=seed)
    file.close()
    return handle


def clips_of(data: bytes, spec: VideoClips, *, seed: int = 0, route: str = "dali-cpu") -> Clips:
    (outcome,) = decoder_of(spec).decode_block([handle_of(data, spec, seed=seed)])
    assert isinstance(outcome, Decoded)
    assert outcome.route == route
    assert isinstance(outcome.value, Clips)
    return outcome.value


def exact_frames(data: bytes) -> Any:
    """Returns uint8[n, H, W, 3]: all frames, converted with BT.601 exactly."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack(
            [
                frame.reformat(format="rgb24", interpolation=EXACT_FLAGS, src_colorspace="ITU601").to_ndarray()
                for frame in container.decode(video=0)
            ]
        )


@pytest.mark.parametrize("name", ON_CPU)
def test_frames_colours_and_times_are_those_of_the_file(name: str) -> None:
    data = video_file(name)
    spec = VideoClips(3, 4, clip_duration_seconds=0.3, sampling="random", layout="FHWC")
    handle, clips = handle_of(data, spec, seed=5), clips_of(data, spec, seed=5)
    wanted = torch.from_numpy(exact_frames(data)[handle.frame_indices])
    assert clips.frames is not None
    assert clips.timestamps is not None
    assert torch.equal(clips.frames, convert_colors(wanted, [find_correction(handle)] * 3, layout="FHWC"))
    reference = SampleDecoder(av_decode=spec).stage("webm", data, seed=5)
    assert torch.equal(clips.timestamps, reference.timestamps)
    if not VIDEOS[name].saturated:  # there PyAV's fast conversion is far from its own exact one
        for ours, theirs in zip(clips.frames.flatten(0, 1), reference.frames.flatten(0, 1), strict=True):
            assert explain_difference(ours.numpy(), theirs.numpy(), CLIPS) is None


@pytest.mark.parametrize("size", [(720, 576), (1280, 720)], ids=["576 lines", "720 lines"])
@pytest.mark.parametrize(
    ("codec", "tag"), [("vp8", None), ("vp8", 1), ("vp9", None), ("vp9", 1), ("vp9", 9), ("mjpeg", None), ("mjpeg", 1)]
)
def test_colours_are_those_of_the_frames_whatever_the_container_says(
    codec: str, tag: int | None, size: tuple[int, int]
) -> None:
    """VP8 and Motion JPEG are BT.601 by definition, VP9 says its matrix in each key frame."""
    box = "mkv" if codec == "mjpeg" else "webm"
    data = encode_video(VideoRecipe(codec, box, frames=2, size=size, saturated=True))
    if tag is not None:
        data = with_colour_matrix(data, tag)
    spec = VideoClips(1, 2)
    ours, theirs = clips_of(data, spec).frames, SampleDecoder(av_decode=spec).stage("webm", data).frames
    assert ours is not None
    assert (ours.float() - theirs.float()).abs().mean() < 2  # another matrix is 8 away from it


@pytest.mark.parametrize("names", [("bt601", "bt709"), ("bt709", "bt601", "bt601")], ids="+".join)
def test_videos_of_one_block_keep_their_colour_matrix(names: tuple[str, ...]) -> None:
    spec = VideoClips(1, 2)
    files = [video_file(f"colour-vp9-{name}-limited") for name in names]
    together = decoder_of(spec).decode_block([handle_of(data, spec) for data in files])
    for data, outcome in zip(files, together, strict=True):
        assert isinstance(outcome, Decoded)
        assert outcome.route == "dali-cpu"
        assert torch.equal(outcome.value.frames, clips_of(data, spec).frames)


def with_colour_matrix(data: bytes, matrix: int) -> bytes:
    """Returns a Matroska file whose container declares a colour matrix (AVColorSpace)."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(data)) as given, av.open(stream, "w", format="matroska") as made:
        video: Any = made.add_stream_from_template(given.streams.video[0])
        video.codec_context.colorspace = matrix
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                made.mux(packet)
    return stream.getvalue()


def test_a_video_whose_frames_are_larger_than_the_limit_before_they_are_resized_stays_away_from_dali() -> None:
    """PyAV resizes frame by frame; DALI holds all frames at full size."""
    spec = VideoClips(1, 3, size=(8, 8))
    for max_bytes in (3 * 3 * 96 * 64, 3 * 3 * 96 * 64 - 1):
        handle, file = stage_clips("webm", video_file("vp9-webm"), spec, limits=AVLimits(max_bytes=max_bytes))
        file.close()
        assert is_eligible_video(handle, "cpu") == (max_bytes == 3 * 3 * 96 * 64)


def test_a_matrix_that_changes_stays_away_from_dali() -> None:
    data = encode_video(VideoRecipe("vp9", "webm", frames=4, gop=2, colour="bt601"))
    with av.open(io.BytesIO(data)) as container:
        (_, second) = [bytes(packet) for packet in container.demux(video=0) if packet.size and packet.is_keyframe]
    # Frame marker, profile, flags and sync code take 32 bits; the matrix follows in 3.
    assert data.count(second) == 1
    assert second[4] >> 5 == 1
    changed = data.replace(second, second[:4] + bytes([second[4] & 0x1F | 2 << 5]) + second[5:])
    assert is_eligible_video(handle_of(data), "cpu")
    assert not is_eligible_video(handle_of(changed), "cpu")


@pytest.mark.parametrize("size", [(61, 45), 40, (120, 120)], ids=str)
@pytest.mark.parametrize("name", ["vp9-webm", "vp8-mkv", "mjpeg-mp4", "vp9-odd-webm"])
def test_resized_clips_are_near_pyav(name: str, size: Any) -> None:
    spec = VideoClips(2, 3, stride=4, size=size)
    data = video_file(name)
    ours, theirs = clips_of(data, spec).frames, SampleDecoder(av_decode=spec).stage("webm", data)
    assert ours is not None
    assert ours.shape == theirs.frames.shape
    for a, b in zip(ours.flatten(0, 1), theirs.frames.flatten(0, 1), strict=True):
        assert explain_difference(a.permute(1, 2, 0).numpy(), b.permute(1, 2, 0).numpy(), CLIPS) is None


@pytest.mark.parametrize("layout", ["FCHW", "FHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_the_bytes_by_255(dtype: Any, layout: Any) -> None:
    data = video_file("colour-vp9-bt709-limited")
    levels = clips_of(data, VideoClips(1, 4, layout=layout)).frames
    frames = clips_of(data, VideoClips(1, 4, layout=layout, dtype=dtype)).frames
    assert levels is not None
    assert frames is not None
    assert torch.equal(frames, (levels.to(torch.float32) / 255).to(getattr(torch, dtype)))
    assert frames.is_contiguous()


def test_frames_may_come_twice_and_clips_may_overlap() -> None:
    data = video_file("vp9-vfr-webm")
    spec = VideoClips(at=(0.5, 0.0, 0.45), sampling="at", frames_per_clip=30, layout="FHWC")
    handle, clips = handle_of(data, spec), clips_of(data, spec)
    assert clips.frames is not None
    assert (np.diff(handle.frame_indices.ravel()) <= 0).any()
    np.testing.assert_array_equal(clips.frames.numpy(), exact_frames(data)[handle.frame_indices])


def test_a_block_of_many_kinds_keeps_its_order() -> None:
    names = [*ON_CPU[:6], "h264-b-mp4", "mjpeg-avi", "av1-webm", "vp9-opus-webm"]
    decoder = decoder_of(TWO_CLIPS)
    handles = [handle_of(video_file(name)) for name in names]
    for name, outcome in zip(names, decoder.decode_block(handles), strict=True):
        assert isinstance(outcome, Decoded)
        assert outcome.route == ("dali-cpu" if name in ON_CPU else "pyav")
        theirs = SampleDecoder(av_decode=TWO_CLIPS).stage("webm", video_file(name))
        assert torch.equal(outcome.value.timestamps, theirs.timestamps)


def test_sound_is_that_of_pyav() -> None:
    spec = VideoClips(2, 4, clip_duration_seconds=0.5, audio=ClipAudio(sample_rate=16_000, channels=1))
    data = video_file("vp9-opus-webm")
    ours, theirs = clips_of(data, spec), SampleDecoder(av_decode=spec).stage("webm", data)
    assert ours.audio is not None
    assert torch.equal(ours.audio, theirs.audio)
    assert ours.audio_sample_rate == 16_000


@pytest.mark.parametrize("name", UNEVEN)
def test_frames_that_are_not_what_the_container_says_stay_away(name: str) -> None:
    """Some of these files end a process that decodes them with DALI."""
    handle, file = stage_clips("webm", uneven_video(name), VideoClips(1, 2))
    file.close()
    assert handle.packets_are_frames
    assert not is_eligible_video(handle, "cpu")
    assert not is_eligible_video(handle, "gpu")


def test_what_suits_which_device() -> None:
    def suits(name: str, kind: Any, **changes: Any) -> bool:
        handle = handle_of(video_file(name))
        if kind == "gpu":
            handle.width, handle.height = 640, 368  # NVDEC has a smallest size
            handle.uniform_frames = True
        for key, value in changes.items():
            setattr(handle, key, value)
        return is_eligible_video(handle, kind)

    assert all(suits(name, "cpu") for name in ON_CPU)
    for name in ("mjpeg-avi", "vp8-avi", "h264-mp4", "hevc-mkv", "av1-webm", "mpeg4-mp4", "h264-edit-two-mp4"):
        assert not suits(name, "cpu"), name
    for name in ("h264-b-mp4", "h264-vfr-b-mkv", "mpeg4-mp4", "vp9-webm", "hevc-mp4"):
        assert suits(name, "gpu"), name
        assert not suits(name, "gpu", packets_are_frames=False)
        assert not suits(name, "gpu", bit_depth=10)
        assert not suits(name, "gpu", width=32)
    for name in (
        "mpeg4-avi",
        "h264-avi",
        "h264-odd-mp4",
        "h264-10bit-mp4",
        "hevc-10bit-mkv",
        "h264-edit-two-mp4",
        "h264-negative-start-mp4",
        "vp8-webm",
        "mjpeg-mp4",
        "av1-mp4",  # of which nobody asked the GPU
    ):
        assert not suits(name, "gpu"), name
    small = handle_of(video_file("vp9-webm"))
    assert not prefers_dali_clips(small.codec, small.width, small.height, small.frames_to_decode, "cpu")
    assert not prefers_dali_clips(small.codec, small.width, small.height, small.frames_to_decode, "gpu")
    assert prefers_dali_clips(small.codec, small.width, small.height, 100_000, "gpu")


@pytest.mark.parametrize("name", ["vp9-webm", "vp8-webm", "mjpeg-mp4"])
def test_a_video_that_fails_costs_no_other(name: str) -> None:
    """Missing frames fail DALI's whole run, and PyAV then decides only about the bad video."""
    good, short = handle_of(video_file(name)), handle_of(video_file(name))
    short.frame_indices = short.frame_indices + 1000
    cut = handle_of(video_file("vp9-webm"))
    assert is_eligible_video(cut, "cpu")
    cut.data = bytes(cut.data)[: len(cut.data) // 3]
    outcomes = DALI.submit(decoder_of(TWO_CLIPS).engine_options, Device("cpu"), [good, short, good, cut, good]).result(
        60
    )
    assert [type(outcome) for outcome in outcomes] == [Decoded, DecodeFailure, Decoded, DecodeFailure, Decoded]
    first = clips_of(video_file(name), TWO_CLIPS).frames
    assert first is not None
    for outcome in (outcomes[0], outcomes[2], outcomes[4]):
        assert isinstance(outcome, Decoded)
        assert outcome.route == "dali-cpu"
        assert torch.equal(outcome.value.frames, first)


def test_what_dali_gives_up_and_pyav_decodes_is_not_a_failure() -> None:
    handle = handle_of(video_file("h264-b-mp4"))
    (outcome,) = DALI.submit(decoder_of(TWO_CLIPS).engine_options, Device("cpu"), [handle]).result(60)
    assert isinstance(outcome, Decoded)
    assert outcome.route == "fallback"
    assert torch.equal(outcome.value.frames, handle.decode().frames)


def test_values_are_held_and_never_overwritten() -> None:
    data, other = video_file("vp9-webm"), video_file("colour-vp9-bt601-full")
    held = clips_of(data, TWO_CLIPS).frames
    assert held is not None
    copy = held.clone()
    for _ in range(10):
        clips_of(other, TWO_CLIPS)
    assert torch.equal(held, copy)


@pytest.mark.parametrize("error", [MemoryError("bad_alloc"), RuntimeError("Can't allocate 99 bytes"), KeyError("x")])
def test_full_memory_is_not_a_bad_sample(error: Exception) -> None:
    with pytest.raises(DeviceFailedError, match="No sample caused this"):
        raise_if_device_failed(error, Device("cpu"), "video")
    raise_if_device_failed(RuntimeError("Failed to send packet to decoder"), Device("cpu"), "video")


def test_damaged_files_never_end_the_process(warm_python: str) -> None:
    code = """
import numpy as np
from energon_dali import DaliDecoder
from energon_dali.decode import Decoded, DecodeFailure
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.interface import MediaHandle
from energon_dali.errors import DecodeError
from energon_dali.decode.video_backends.choice import BACKENDS
from tests.av.corpus import video_file
from tests.decode.dali.video.test_video import damage
decoder = DaliDecoder(av_decode=VideoClips(2, 3), video_decode_device="cpu")
rng, good, seen = np.random.default_rng(1), video_file("vp9-webm"), 0
first = decoder.decode_block([decoder.stage("webm", good)])[0].value.frames
for turn in range(12):
    block = [decoder.stage("webm", good)]
    for name in ("vp8-webm", "vp9-mkv", "vp9-mp4", "mjpeg-mkv", "mjpeg-mp4", "vp9-opus-webm", "vp8-mkv", "mjpeg-mov"):
        try:
            staged = decoder.stage("webm", damage(video_file(name), rng))
        except DecodeError:
            continue
        if isinstance(staged, MediaHandle):
            block.append(staged)
    outcomes = decoder.decode_block(block)
    seen += len(block) - 1
    assert (outcomes[0].value.frames == first).all(), "a neighbour"
    assert all(isinstance(outcome, (Decoded, DecodeFailure)) for outcome in outcomes)
print("survived", seen > 40)
"""
    done = subprocess.run([warm_python, "-c", code], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "survived True"), done.stderr[-2000:]


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Returns a file with flipped bits, a hole, other bytes, or without its end."""
    changed, size = bytearray(data), len(data)
    at, length = int(rng.integers(size)), int(rng.integers(1, 200))
    kind = int(rng.integers(4))
    if kind == 0:
        for place in rng.integers(0, size, 8):
            changed[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del changed[at : at + length]
    elif kind == 2:
        changed[at : at + length] = rng.bytes(len(changed[at : at + length]))
    else:
        del changed[max(at, size // 2) :]
    return bytes(changed)


class TensorListGPU:
    """Replaces DALI's class of this name, with frames on the CPU."""

    def __init__(self, videos: list[torch.Tensor]) -> None:
        self._videos = videos

    def is_dense_tensor(self) -> bool:
        return len({video.shape for video in self._videos}) == 1

    def as_tensor(self) -> torch.Tensor:
        return torch.stack(self._videos)

    def __iter__(self) -> Any:
        return iter(self._videos)


@pytest.mark.parametrize(
    "names",
    [
        ["colour-vp9-bt709-full", "colour-vp9-bt2020-limited", "colour-vp9-bt601-full"],
        ["colour-vp9-bt709-limited", "vp9-vfr-webm"],
    ],
    ids=["even", "ragged"],
)
@pytest.mark.parametrize("stride", [1, 3], ids=["in-order", "repeated"])
def test_frames_of_a_gpu_become_those_of_the_cpu(names: list[str], stride: int) -> None:
    """Everything after NVDEC: order, repetition, each video's own colours, dtype and layout."""
    spec = VideoClips(2, 3, stride=stride, dtype="bfloat16")
    handles = [handle_of(video_file(name), spec) for name in names]
    decoded = [
        torch.from_numpy(exact_frames(video_file(name))[np.unique(handle.frame_indices)])
        for name, handle in zip(names, handles, strict=True)
    ]
    for ours, name in zip(take_frames(TensorListGPU(decoded), handles), names, strict=True):
        wanted = clips_of(video_file(name), spec).frames
        assert wanted is not None
        assert ours is not None
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize("lost", [[1], [0, 1, 2]], ids=["one", "all"])
@pytest.mark.parametrize("stride", [1, 3], ids=["in-order", "repeated"])
def test_fewer_frames_than_asked_for_cost_that_video_alone(
    stride: int, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that ends a damaged stream early without an error: PyAV decodes those videos, DALI keeps the rest."""
    spec = VideoClips(2, 3, stride=stride)
    handles = [handle_of(video_file("vp9-vfr-webm"), spec) for _ in range(3)]
    by_pyav = handles[0].decode().frames
    frames = torch.from_numpy(exact_frames(video_file("vp9-vfr-webm"))[np.unique(handles[0].frame_indices)])
    (by_dali,) = take_frames(TensorListGPU([frames]), handles[:1])
    assert by_dali is not None
    outputs = TensorListGPU([frames[:-1] if i in lost else frames for i in range(3)])
    monkeypatch.setattr("energon_dali.decode.dali.runtime.engine.build_pipeline", lambda *_: FakePipeline(outputs))
    monkeypatch.setattr("energon_dali.decode.dali.runtime.engine.count_bytes", lambda _: 0)
    engine = DaliVideoEngine(
        VideoGraph.from_spec(spec, Device("cpu"), corrects=False),
        decoder_of(spec).engine_options.on(Device("cpu"), most_samples=16),
        DeviceMemory(Device("cpu")),
    )
    outcomes = engine.submit(handles).result(60)
    engine.close()
    for position, outcome in enumerate(outcomes):
        assert isinstance(outcome, Decoded)
        assert outcome.route == ("fallback" if position in lost else "dali-cpu")
        assert torch.equal(outcome.value.frames, by_pyav if position in lost else by_dali)


class FakePipeline:
    """Replaces a pipeline, with fixed outputs."""

    def __init__(self, outputs: Any) -> None:
        self._outputs = outputs

    def feed_input(self, name: str, values: Any) -> None:
        """Ignores its inputs."""

    def schedule_run(self) -> None:
        """Starts nothing."""

    def outputs(self, **_: Any) -> tuple[Any]:
        return (self._outputs,)
