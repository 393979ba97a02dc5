"""DaliDecoder returns what SampleDecoder returns, for every type name and format; its errors say what is missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure, MediaHandle, SampleDecoder
from energon_dali.decode.dali.dispatch import DaliHandle
from energon_dali.decode.dali.runtime import device
from energon_dali.decode.spec import IMAGE_DECODE_NAMES
from energon_dali.errors import ConfigError, DeviceError
from tests.decode.every_option import EVERY_OPTION
from tests.decode.sample_images import broken_images, sample_images

PIL_FORMATS = ("gif", "avif", "ico", "tga", "png-16bit", "tiff-16bit", "tiff-float")
"""Formats that DALI rejects, or converts to 8 bits differently than PIL."""


def as_array(value: Any) -> np.ndarray[Any, Any]:
    return (
        value.float().numpy()
        if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
        else np.asarray(value)
    )


@pytest.mark.parametrize("name", IMAGE_DECODE_NAMES)
def test_equals_sample_decoder(name: Any) -> None:
    """All formats in one block equal PIL's pixels bit for bit."""
    dali, pil = DaliDecoder(image_decode=name, image_decode_device="cpu"), SampleDecoder(image_decode=name)
    staged = {
        key: dali.stage("jpg", data) for key, data in sample_images().items()
    }  # formats are recognised by content
    handles = {key: value for key, value in staged.items() if isinstance(value, MediaHandle)}
    outcomes = dict(zip(handles, dali.decode_block(list(handles.values())), strict=True))
    assert len(outcomes) >= 35
    for key, data in sample_images().items():
        expected = pil.decode("jpg", data)
        outcome = outcomes.get(key)
        assert outcome is None or (isinstance(outcome, Decoded) and outcome.route == "dali-cpu"), key
        got = staged[key] if outcome is None else outcome.value
        assert type(got) is type(expected), key
        assert as_array(got).dtype == as_array(expected).dtype, key
        if name.startswith("pil"):
            assert got.mode == expected.mode, key
        np.testing.assert_array_equal(as_array(got), as_array(expected), err_msg=key)


def test_formats_that_dali_cannot_match_go_to_pil_where_they_are_read() -> None:
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    for key, data in sample_images().items():
        if key.startswith(PIL_FORMATS):
            assert isinstance(decoder.stage("jpg", data), torch.Tensor), key


def test_alpha_and_palettes_go_to_pil_where_the_mode_needs_it() -> None:
    rgba = DaliDecoder(image_decode="rgba8", image_decode_device="cpu")
    gray = DaliDecoder(image_decode="l8", image_decode_device="cpu")
    assert isinstance(rgba.stage("png", sample_images()["png-rgba"]), np.ndarray)
    assert isinstance(rgba.stage("png", sample_images()["png-rgb"]), DaliHandle)
    assert isinstance(gray.stage("png", sample_images()["png-palette"]), np.ndarray)
    assert isinstance(gray.stage("jpg", sample_images()["jpeg-cmyk"]), np.ndarray)


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("number", range(1, 9))
def test_exif_orientation(number: int, upright: bool) -> None:
    """Off by default, as in Energon. With the option, all backends rotate the same way."""
    data = sample_images()[f"jpeg-exif-{number}"]
    options: dict[str, Any] = {"image_decode": "rgb8", "apply_exif_orientation": upright}
    dali = DaliDecoder(image_decode_device="cpu", **options)
    (outcome,) = dali.decode_block([dali.stage("jpg", data)])
    assert isinstance(outcome, Decoded)
    np.testing.assert_array_equal(outcome.value, SampleDecoder(**options).decode("jpg", data))
    assert outcome.value.shape[:2] == ((157, 118) if upright and number >= 5 else (118, 157))


def test_layouts_and_dtypes() -> None:
    for options in (
        {"image_layout": "HWC"},
        {"image_dtype": "float16"},
        {"image_dtype": "bfloat16"},
        {"image_decode": "torchl", "image_layout": "CHW"},
        {"image_decode": "l8", "image_layout": "HWC"},
        {"image_decode": "rgb", "image_layout": "CHW"},
    ):
        dali, pil = DaliDecoder(image_decode_device="cpu", **options), SampleDecoder(**options)  # type: ignore[arg-type]
        for keys in (("jpeg-420", "jpeg-444"), ("jpeg-420", "jpeg-1x1")):  # uniform, ragged
            outcomes = dali.decode_block([dali.stage("jpg", sample_images()[key]) for key in keys])
            for key, outcome in zip(keys, outcomes, strict=True):
                expected = pil.decode("jpg", sample_images()[key])
                assert isinstance(outcome, Decoded), options
                assert outcome.value.dtype == expected.dtype, options
                np.testing.assert_array_equal(as_array(outcome.value), as_array(expected), err_msg=str(options))


def test_decode_and_call_work_sample_by_sample() -> None:
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    sample = decoder({"__key__": "a", "jpg": sample_images()["jpeg-420"], "txt": b"hello", "json": b"[1]"})
    assert sample["jpg"].shape == (3, 118, 157)
    assert (sample["txt"], sample["json"], sample["__key__"]) == ("hello", [1], "a")


def test_is_cheap_and_picklable() -> None:
    decoder = DaliDecoder(image_decode="rgb8", image_decode_device="cpu", num_threads=3)
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy.config() == decoder.config()
    assert copy.config()["num_threads"] == 3
    handle = pickle.loads(pickle.dumps(decoder.stage("jpg", sample_images()["jpeg-420"])))
    assert isinstance(handle, DaliHandle)


def test_making_and_staging_imports_neither_dali_nor_cuda() -> None:
    code = (
        "import sys, energon_dali.decode as d, torch\n"
        "decoder = d.DaliDecoder(image_decode_device='cpu')\n"
        "assert decoder.placement == 'rank'\n"
        "handle = decoder.stage('jpg', open(sys.argv[1], 'rb').read())\n"
        "assert type(handle).__name__ == 'DaliHandle'\n"
        "assert 'nvidia.dali' not in sys.modules and not torch.cuda.is_initialized()\n"
    )
    from tests.decode.sample_images import DATA

    subprocess.run([sys.executable, "-c", code, str(DATA / "photo-411.jpg")], check=True, timeout=60)


def test_handles_of_other_decoders_are_screened_before_dali_sees_them() -> None:
    """A plain handle may hold any data: here text, and images that DALI would decode differently."""
    dali, pil = DaliDecoder(image_decode="rgb8", image_decode_device="cpu"), SampleDecoder(image_decode="rgb8")
    good, gif, text = sample_images()["jpeg-420"], sample_images()["gif"], broken_images()["text"]
    handles = [
        pil.make_handle("jpg", good),
        pil.make_handle("gif", gif),
        MediaHandle("jpg", text, "jpeg", 9, 9, pil.spec),
    ]
    first, second, third = dali.decode_block(handles)
    assert isinstance(first, Decoded)
    assert first.route == "dali-cpu"
    assert isinstance(second, Decoded)
    assert second.route == "pil"
    assert isinstance(third, DecodeFailure)
    assert third.route == "screen"


def test_several_specs_in_one_block() -> None:
    gray, color = (DaliDecoder(image_decode=name, image_decode_device="cpu") for name in ("l8", "torchrgb"))
    data = sample_images()["jpeg-420"]
    first, second, third = color.decode_block(
        [color.stage("jpg", data), gray.stage("jpg", data), color.stage("jpg", data)]
    )
    assert isinstance(first, Decoded)
    assert isinstance(second, Decoded)
    assert isinstance(third, Decoded)
    assert (first.value.shape, second.value.shape, third.value.dtype) == ((3, 118, 157), (118, 157), torch.float32)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_decode_device": "tpu"}, "is not a device"),
        ({"image_decode_device": -1}, "is not a device"),
        ({"video_decode_device": True}, "is not a device"),
        ({"feed": "push"}, "is unknown"),
        (
            {"feed": "native", "front_end": EVERY_OPTION["front_end"]},
            r'feed="native" was given with front_end=FixedSize\(...\)\..*blocks\. Leave feed out',
        ),
        ({"num_threads": 0}, "num_threads=0 is invalid"),
        ({"max_batch_size": 0}, "max_batch_size=0 is invalid"),
        ({"gpu_memory_budget_bytes": "8G"}, "gpu_memory_budget_bytes='8G' is invalid"),
    ],
)
def test_refuses_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DaliDecoder(**options)


def test_auto_without_dali_is_sample_decoder(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(device, "has_dali", lambda: False)
    monkeypatch.setattr(device, "_said", set())
    decoder = DaliDecoder(image_decode="torchrgb8")
    with caplog.at_level("INFO"):
        assert decoder.placement == "worker"
        assert decoder.placement == "worker"
    assert [record.message for record in caplog.records if "DALI is not installed" in record.message] == [
        "PIL decodes images in the workers: DALI is not installed. To use it: " + device.INSTALL_HINT + "."
    ]
    value = decoder.stage("jpg", sample_images()["jpeg-420"])
    assert isinstance(value, torch.Tensor)
    (outcome,) = decoder.decode_block([decoder.make_handle("jpg", sample_images()["jpeg-420"])])
    assert isinstance(outcome, Decoded)
    assert outcome.route == "pil"
    assert torch.equal(outcome.value, value)
    for option in ("cpu", "gpu", 0):
        with pytest.raises(DeviceError, match=r"needs NVIDIA DALI.*pip install"):
            _ = DaliDecoder(image_decode_device=option).placement  # type: ignore[arg-type]


def test_where_media_are_decoded_is_fixed_in_a_process_and_found_again_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = DaliDecoder()
    assert decoder.placement == "rank"
    sent = pickle.dumps(decoder)
    monkeypatch.setattr(device, "has_dali", lambda: False)  # as on another machine
    assert decoder.placement == "rank"
    assert pickle.loads(sent).placement == "worker"


def test_gpu_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "sees_gpu", lambda: False)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU, and none is visible"):
        _ = DaliDecoder(image_decode_device="gpu").placement
    assert DaliDecoder().device == device.Device("cpu")
    # A device file without a working driver.
    monkeypatch.setattr(device, "sees_gpu", lambda: True)
    monkeypatch.setattr(device, "_count_gpus", lambda: 0)
    with pytest.raises(DeviceError, match="CUDA finds no usable GPU"):
        _ = DaliDecoder(image_decode_device=0).device
    assert DaliDecoder().device == device.Device("cpu")
    monkeypatch.setattr(device, "_count_gpus", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"torch .* is built only for the CPU.*docs/installation\.md"):
        _ = DaliDecoder(image_decode_device="gpu").device
    assert DaliDecoder().device == device.Device("cpu")  # DALI sees GPUs that torch cannot use
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(DeviceError, match=r"the driver is probably too old for CUDA 13\.0"):
        _ = DaliDecoder(image_decode_device="gpu").device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(DeviceError, match=r"image_decode_device=2 does not exist: CUDA sees 2 GPU\(s\)"):
        _ = DaliDecoder(image_decode_device=2).device
    assert DaliDecoder(image_decode_device=1).device == device.Device("gpu", 1)


def test_hidden_gpus_are_not_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_any_file", lambda patterns: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.sees_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not device.sees_gpu()
