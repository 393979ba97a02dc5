""" "auto" follows one table; a device that is named explicitly follows none."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import CenterCrop, DaliDecoder, Decoded, SampleDecoder
from energon_dali.decode.dali import decoder, thresholds
from energon_dali.decode.dali.dispatch import DaliHandle
from energon_dali.decode.dali.runtime import device
from energon_dali.decode.dali.runtime.host_decoding import DecodedHandle
from energon_dali.decode.dali.thresholds import CLIPS, IMAGES, Threshold
from energon_dali.loader.processes.serialization import deserialize, serialize
from tests.decode.sample_images import encode, photograph, sample_images

LARGE_BMP = encode(photograph(size=(300, 200)), "BMP")
SMALL_BMP = encode(photograph(size=(60, 50)), "BMP")


def test_sizes_at_the_edges() -> None:
    middle = Threshold(100, 200)
    assert [middle.includes(pixels) for pixels in (99, 100, 200, 201)] == [False, True, True, False]
    assert not Threshold(None).includes(10**12)
    assert Threshold().includes(1)


def test_the_table_knows_what_dali_decodes() -> None:
    assert set(IMAGES["cpu"]) == set(IMAGES["gpu"]) == {"jpeg", "png", "tiff", "jpeg2000", "bmp", "pnm"}
    assert set(CLIPS["cpu"]) == {"vp8", "vp9", "mjpeg"}
    assert set(CLIPS["gpu"]) == {"h264", "hevc", "vp9", "mpeg4", "av1"}
    assert not thresholds.prefers_dali_clips("vp9", 4096, 4096, 10**6, "cpu")
    assert not thresholds.prefers_dali_clips("unheard", 4096, 4096, 10**6, "gpu")


def test_auto_follows_the_table_and_a_named_device_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "sees_gpu", lambda: False)

    def staged(data: bytes, **options: Any) -> type:
        return type(DaliDecoder(**options).stage("jpg", data))

    assert staged(LARGE_BMP, image_decode="rgb8") is np.ndarray
    assert staged(SMALL_BMP, image_decode="rgb8") is DaliHandle
    assert staged(LARGE_BMP, image_decode="rgb8", image_decode_device="cpu") is DaliHandle
    assert staged(LARGE_BMP, image_decode="rgb8", operations=[CenterCrop(50)]) is DaliHandle
    assert staged(LARGE_BMP, image_decode="torchrgb") is DaliHandle
    assert staged(sample_images()["jpeg-420"], image_decode="rgb8") is DaliHandle
    monkeypatch.setitem(IMAGES["cpu"], "jpeg", Threshold(10**9))
    assert staged(sample_images()["jpeg-420"], image_decode="rgb8") is np.ndarray


def test_what_pil_decodes_for_a_gpu_is_decoded_in_the_worker_and_moved_by_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (decoder, device):
        monkeypatch.setattr(module, "sees_gpu", lambda: True)
    monkeypatch.setitem(IMAGES["gpu"], "png", Threshold(None))
    worker = DaliDecoder(image_decode="torchrgb8")
    names = ("gif", "png-rgb", "png-16bit-gray")
    handles = [worker.stage("png", sample_images()[name]) for name in names]
    assert all(type(handle) is DecodedHandle and handle.data == b"" for handle in handles)
    block = serialize(handles)
    memory = memoryview(bytearray(block.size))
    block.write(memory)
    arrived = [*deserialize(memory, block.extents), pickle.loads(pickle.dumps(handles[0]))]
    monkeypatch.setattr(device, "sees_gpu", lambda: False)  # the rank finds no device after all
    monkeypatch.setattr(decoder, "sees_gpu", lambda: False)
    rank = DaliDecoder(image_decode="torchrgb8")
    jpeg = rank.stage("jpg", sample_images()["jpeg-420"])
    outcomes = rank.decode_block([*arrived, jpeg])
    for outcome, name in zip(outcomes, (*names, "gif", "jpeg-420"), strict=True):
        assert isinstance(outcome, Decoded)
        assert outcome.route == ("dali-cpu" if name == "jpeg-420" else "pil")
        assert torch.equal(outcome.value, SampleDecoder(image_decode="torchrgb8").decode("png", sample_images()[name]))
