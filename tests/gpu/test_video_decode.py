"""Clips on a GPU: the CPU's frames and times, the file's colours, isolation, lifetime on CUDA streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.decode import Decoded, DecodeFailure
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import stage_clips
from tests.av.corpus import VideoRecipe, encode_video
from tests.decode.tolerance import CLIPS, explain_difference
from tests.gpu.where import Where

pytestmark = pytest.mark.costly_dry_run  # tests/decode/dali tests the same on the CPU

SIZE = (320, 240)
RECIPES = {
    "h264": VideoRecipe("h264", "mp4", size=SIZE),
    "h264-b": VideoRecipe("h264", "mkv", size=SIZE, b_frames=2),
    "h264-vfr": VideoRecipe("h264", "mov", size=SIZE, b_frames=2, variable_rate=True),
    "h264-709": VideoRecipe("h264", "mp4", size=(336, 256), colour="bt709"),
    "h264-full-709": VideoRecipe("h264", "mp4", size=SIZE, colour="bt709", full_range=True),
    "hevc": VideoRecipe("hevc", "mp4", size=SIZE, gop=1000),
    "hevc-2020": VideoRecipe("hevc", "mkv", size=SIZE, gop=1000, colour="bt2020"),
    "mpeg4": VideoRecipe("mpeg4", "mkv", size=SIZE),
    "vp9": VideoRecipe("vp9", "webm", size=SIZE),
    "vp9-709": VideoRecipe("vp9", "mp4", size=SIZE, colour="bt709"),
}


def decode(decoder: DaliDecoder, handles: list[ClipsHandle]) -> list[Any]:
    outcomes = decoder.decode_block(handles)
    assert all(isinstance(outcome, Decoded) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Decoded)]


def handle_of(data: bytes, spec: VideoClips, seed: int = 3) -> ClipsHandle:
    handle, file = stage_clips("mp4", data, spec, seed=seed)
    file.close()
    return handle


def assert_near(where: Where, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.device.type == where.torch_device
    assert ours.shape == theirs.shape
    for a, b in zip(ours.cpu().flatten(0, 1).numpy(), theirs.flatten(0, 1).numpy(), strict=True):
        assert explain_difference(a, b, CLIPS) is None


@pytest.mark.parametrize("size", [None, (112, 112)], ids=["kept", "resized"])
@pytest.mark.parametrize("name", RECIPES)
def test_frames_times_and_colours_are_those_of_the_cpu(where: Where, name: str, size: Any) -> None:
    """All frames of the corpus differ, so a frame in the wrong position is far out of tolerance."""
    data = encode_video(RECIPES[name])
    spec = VideoClips(3, 5, clip_duration_seconds=0.4, sampling="random", size=size, layout="FHWC")
    handle = handle_of(data, spec)
    assert is_eligible_video(handle, "gpu")  # also in a dry run
    route = f"dali-{where.kind}" if is_eligible_video(handle, where.kind) else "pyav"
    (outcome,) = decode(where.decoder(av_decode=spec), [handle])
    assert outcome.route == route
    theirs = SampleDecoder(av_decode=spec).stage("mp4", data, seed=3)
    assert torch.equal(outcome.value.timestamps, theirs.timestamps)
    assert_near(where, outcome.value.frames, theirs.frames)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_the_bytes_by_255(where: Where, dtype: Any) -> None:
    data = encode_video(RECIPES["h264-709"])
    levels, floats = (
        decode(where.decoder(av_decode=spec), [handle_of(data, spec)] * 2)
        for spec in (VideoClips(1, 8), VideoClips(1, 8, dtype=dtype))
    )
    for a, b in zip(levels, floats, strict=True):
        # On the CPU: on CUDA, torch multiplies by the reciprocal of a number instead of dividing.
        expected = (a.value.frames.cpu().to(torch.float32) / 255).to(getattr(torch, dtype))
        assert torch.equal(b.value.frames.cpu(), expected)


def test_what_the_gpu_cannot_decode_comes_from_pyav_and_ends_there_too(where: Where) -> None:
    spec = VideoClips(1, 4, layout="FHWC")
    recipes = [
        VideoRecipe("vp8", "webm", size=SIZE),
        VideoRecipe("h264", "avi", size=SIZE),
        VideoRecipe("hevc", "mkv", size=SIZE, pixel_format="yuv420p10le"),
        VideoRecipe("av1", "mp4", size=SIZE),
        VideoRecipe("h264", "mp4", size=(322, 242)),  # of 336 x 256, which are cut
        VideoRecipe("vp9", "webm", size=(321, 241)),
    ]
    files = [encode_video(recipe) for recipe in recipes]
    outcomes = decode(where.decoder(av_decode=spec), [handle_of(data, spec) for data in files])
    for outcome, data in zip(outcomes, files, strict=True):
        assert_near(where, outcome.value.frames, SampleDecoder(av_decode=spec).stage("mp4", data).frames)


@pytest.mark.costly_dry_run
def test_clips_of_mixed_sizes_keep_their_colours(where: Where) -> None:
    """DALI keeps hardware decoders, and takes one of another size for files whose frames are cut (`coded_size`)."""
    spec = VideoClips(1, 4, layout="FHWC")
    sizes = [("h264", (1280, 720)), ("h264", (1280, 714)), ("h264", (640, 360)), ("vp9", (640, 360))]
    sizes += [("h264", (640, 368)), ("vp9", (640, 361)), ("h264", (1920, 1080)), ("h264", (1920, 1088))]
    recipes = [VideoRecipe(codec, "mkv", frames=4, size=size, saturated=True) for codec, size in sizes]
    files = [encode_video(recipe) for recipe in recipes]
    theirs = [SampleDecoder(av_decode=spec).stage("mkv", data).frames for data in files]
    for _ in range(3):  # the first round makes the decoders, the next ones find them
        for data, wanted in zip(files, theirs, strict=True):
            (outcome,) = decode(where.decoder(av_decode=spec), [handle_of(data, spec)])
            assert outcome.value.frames.device.type == where.torch_device
            difference = (outcome.value.frames.cpu().float() - wanted.float()).abs()
            assert difference.mean((0, 1, 3, 4)).max() < 8  # of any row: wrong chroma is tens of levels away


def test_damaged_videos_cost_no_other_and_leave_the_device_well(where: Where) -> None:
    spec, rng = VideoClips(1, 6), np.random.default_rng(2)
    decoder = where.decoder(av_decode=spec)
    good = encode_video(RECIPES["h264-b" if where.kind == "gpu" else "vp9"])
    (first,) = decode(decoder, [handle_of(good, spec)])
    for _ in range(20 if where.kind == "gpu" else 4):
        block = [handle_of(good, spec) for _ in range(6)]
        damaged = bytearray(good)
        for place in rng.integers(len(good) // 4, len(good), 20):
            damaged[place] ^= 1 << int(rng.integers(8))
        block[2].data = bytes(damaged)
        block[4].frame_indices = block[4].frame_indices + 1000
        outcomes = decoder.decode_block(block)
        assert isinstance(outcomes[4], DecodeFailure)
        for position in (0, 1, 3, 5):
            outcome = outcomes[position]
            assert isinstance(outcome, Decoded)
            assert outcome.route == f"dali-{where.kind}"
            assert torch.equal(outcome.value.frames, first.value.frames)


def test_clips_held_over_many_blocks_and_used_on_another_stream(where: Where) -> None:
    spec = VideoClips(2, 8)
    decoder = where.decoder(av_decode=spec)
    data, other = encode_video(RECIPES["h264"]), encode_video(RECIPES["vp9-709"])
    with where.other_stream():
        held = decode(decoder, [handle_of(data, spec)])[0].value.frames
        copy = held.clone()
    for _ in range(30):
        decode(decoder, [handle_of(other, spec)] * 4)
    where.finish()
    assert torch.equal(held, copy)
