"""torchcodec and PyNvVideoCodec, where they are installed: the CPU's frames, for sizes that follow each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energon_dali import SampleDecoder
from energon_dali.decode import Decoded
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends.choice import BACKENDS
from tests.av.corpus import VideoRecipe, encode_video
from tests.decode.tolerance import CLIPS, explain_difference
from tests.gpu.where import Where

RECIPES = {
    "h264": VideoRecipe("h264", "mp4", size=(320, 240), b_frames=2),
    "h264 cut": VideoRecipe("h264", "mp4", size=(320, 230), b_frames=2),  # coded in the size of the one before
    "h264 709": VideoRecipe("h264", "mp4", size=(336, 256), colour="bt709"),
    "h264 full": VideoRecipe("h264", "mp4", size=(320, 240), colour="bt709", full_range=True),
    "hevc": VideoRecipe("hevc", "mp4", size=(320, 244), gop=1000),
    "vp9": VideoRecipe("vp9", "webm", size=(320, 240)),
}


@pytest.mark.costly_dry_run
@pytest.mark.parametrize("size", [None, (112, 112)], ids=["kept", "resized"])
@pytest.mark.parametrize("name", ["torchcodec", "pynvvideocodec"])
def test_frames_are_those_of_the_cpu(where: Where, name: Any, size: Any) -> None:
    backend = BACKENDS[name]
    if not backend.is_installed or where.kind not in backend.kinds:
        pytest.skip(f"{backend.module} is not installed, or does not decode on the {where.kind}")
    spec = VideoClips(2, 5, clip_duration_seconds=0.4, sampling="random", size=size, layout="FHWC")
    decoder = where.decoder(av_decode=spec, video_backend=name)
    files = {label: encode_video(recipe) for label, recipe in RECIPES.items()}
    for _ in range(2):  # the second round finds hardware decoders of the first
        for label, data in files.items():
            handle, file = stage_clips("mp4", data, spec, seed=3)
            file.close()
            (outcome,) = decoder.decode_block([handle])
            assert isinstance(outcome, Decoded), (label, outcome)
            assert outcome.route in (f"torchcodec-{where.kind}", name), label
            theirs = SampleDecoder(av_decode=spec).stage("mp4", data, seed=3)
            assert torch.equal(outcome.value.timestamps, theirs.timestamps)
            assert outcome.value.frames.device.type == where.torch_device
            ours = outcome.value.frames.cpu().flatten(0, 1).numpy()
            for a, b in zip(ours, theirs.frames.flatten(0, 1).numpy(), strict=True):
                assert explain_difference(a, b, CLIPS) is None, label
