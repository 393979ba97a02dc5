"""A container without the capability "video": the driver's video library is missing, and the CPU decodes all videos."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from energon_dali import SampleDecoder
from energon_dali.decode import Decoded
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali.runtime import device as devices
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends import nvdec
from tests.av.corpus import VideoRecipe, encode_video
from tests.gpu.where import Where


@pytest.fixture
def _no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nvdec, "LIBRARY", "libnvcuvid-of-another-container.so.1")
    monkeypatch.setattr(devices, "_said", set())
    for cached in (nvdec._load, nvdec.ask_nvdec):
        cached.cache_clear()
    yield
    for cached in (nvdec._load, nvdec.ask_nvdec):
        cached.cache_clear()


@pytest.mark.usefixtures("_no_library")
def test_videos_are_decoded_all_the_same_and_one_warning_says_what_mends_it(
    where: Where, caplog: pytest.LogCaptureFixture
) -> None:
    spec = VideoClips(1, 4, layout="FHWC")
    data = encode_video(VideoRecipe("h264", "mp4", frames=8, size=(320, 240)))
    decoder = where.decoder(av_decode=spec)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            handle, file = stage_clips("mp4", data, spec, seed=0)
            file.close()
            (outcome,) = decoder.decode_block([handle])
            assert isinstance(outcome, Decoded)
            assert outcome.route == "pyav"
            assert outcome.value.frames.device.type == where.torch_device
    expected = SampleDecoder(av_decode=spec).stage("mp4", data, seed=0)
    assert torch.equal(outcome.value.frames.cpu(), expected.frames)
    warned = [record.message for record in caplog.records if "NVIDIA_DRIVER_CAPABILITIES" in record.message]
    assert len(warned) == (1 if where.kind == "gpu" else 0)
