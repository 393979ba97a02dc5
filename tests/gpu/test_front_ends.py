"""Front ends on a GPU: the layout of the CPU, and values near it; every image of a block ends on the device."""

from __future__ import annotations

import pytest
import torch

from energon_dali import FrontEnd, SampleDecoder, batch_vision
from energon_dali.decode import Decoded, MediaHandle
from tests.decode.sample_images import sample_images
from tests.gpu.where import Where, values_of

CONFIGS = {
    "fixed size": {"image_processor_type": "CLIPImageProcessor"},
    "qwen2-vl": {"image_processor_type": "Qwen2VLImageProcessor"},
    "internvl": {"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": True, "max_patches": 6},
    "llava-next": {"image_processor_type": "LlavaNextImageProcessor"},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "do_convert_rgb": True},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 224, "width": 224}},
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor"},
    "mllama": {"image_processor_type": "MllamaImageProcessor", "size": {"height": 112, "width": 112}},
}
FILES = [sample_images()[name] for name in ("jpeg-420", "jpeg-444", "jpeg-gray", "png-rgb", "jpeg-cmyk")]
_MEAN_LEVELS = 1.0
"""Most levels of 255 by which an image may differ on average. The decoders differ by up to half a level on average
(`tolerance.GPU`); on CUDA torch resamples floats, which moves roundings by at most half a level more."""


@pytest.mark.parametrize("name", CONFIGS)
def test_values_are_near_the_cpu(where: Where, name: str) -> None:
    front_end = FrontEnd.from_processor(CONFIGS[name], resampling="torch")
    expected = [SampleDecoder(front_end=front_end).decode("jpg", data) for data in FILES]
    decoder = where.decoder(front_end=front_end)
    handles = [decoder.stage("jpg", data) for data in FILES]
    assert all(isinstance(handle, MediaHandle) for handle in handles)
    got = values_of(decoder, handles)
    for value, wanted in zip(got, expected, strict=True):
        assert value.layout == wanted.layout
        assert value.values.device.type == where.torch_device
        assert value.values.shape == wanted.values.shape
        levels = (value.pixels.cpu().float() - wanted.pixels.float()).abs()
        assert levels.mean() < _MEAN_LEVELS
        if where.kind == "cpu":
            assert torch.equal(value.values, wanted.values)
    batch, wanted_batch = batch_vision(got), batch_vision(expected)
    assert batch.keys() == wanted_batch.keys()
    assert batch["pixel_values"].shape == wanted_batch["pixel_values"].shape
    assert batch["pixel_values"].device.type == where.torch_device


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_conversion_equals_the_cpu(where: Where, dtype: str) -> None:
    front_end = FrontEnd.from_processor(CONFIGS["qwen2-vl"], dtype=dtype)  # type: ignore[arg-type]
    image = SampleDecoder(front_end=front_end).decode("jpg", FILES[0])
    moved = front_end.finish(image.pixels.to(where.torch_device), image.layout)
    # The same bytes become the same values: each step is one float32 operation, on any device.
    assert torch.equal(moved.cpu(), image.values)


@pytest.mark.parametrize("name", ["qwen2-vl", "llava-next"])
def test_webp_among_jpegs_costs_no_order_and_ends_on_the_device(where: Where, name: str) -> None:
    """30 % WebP: PIL decodes and renders it in threads of the rank, the device the rest, and batches hold both."""
    front_end = FrontEnd.from_processor(CONFIGS[name], resampling="torch")
    files = [("webp", "webp-lossy") if number % 10 in (1, 4, 8) else ("jpg", "jpeg-420") for number in range(20)]
    decoder, reference = where.decoder(front_end=front_end), SampleDecoder(front_end=front_end)
    outcomes = decoder.decode_block([decoder.stage(suffix, sample_images()[image]) for suffix, image in files])
    values = []
    for (suffix, image), outcome in zip(files, outcomes, strict=True):
        assert isinstance(outcome, Decoded)
        assert outcome.route == ("pil" if suffix == "webp" else f"dali-{where.kind}")
        wanted = reference.decode(suffix, sample_images()[image])
        assert outcome.value.layout == wanted.layout
        assert outcome.value.values.device.type == where.torch_device
        assert (outcome.value.pixels.cpu().float() - wanted.pixels.float()).abs().mean() < _MEAN_LEVELS
        values.append(outcome.value)
    assert batch_vision(values)["pixel_values"].device.type == where.torch_device
