"""Front ends on a GPU: the bits of the CPU, no waiting, and what torch's kernels refuse. CUDA is a fake."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energon_dali import FrontEnd
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.resampling import Pixels, shrinks_too_far
from tests.fake_cuda import CudaDivision, GpuTensor, GpuWork

ARITHMETICS: Any = ("pil", "torch")


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(4), dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channel_axis", [1, 2])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("normalizes", [True, False])
def test_values_have_the_bits_of_the_cpu_however_cuda_divides(
    normalizes: bool, arithmetic: Any, channel_axis: int, dtype: torch.dtype
) -> None:
    """On CUDA, torch multiplies by the reciprocal of a number, which gives 126 of 256 levels another float32."""
    given: Any = {"mean": (0.48, 0.45, 0.4), "std": (0.26, 0.27, 0.28)} if normalizes else {}
    values = PixelValues(arithmetic=arithmetic, **given)
    pixels = noise(5, 3, 49) if channel_axis == 1 else noise(5, 49, 3)
    expected = values.convert(pixels, dtype, channel_axis=channel_axis)
    with GpuWork(), CudaDivision():
        found = values.convert(GpuTensor.on(0, pixels), dtype, channel_axis=channel_axis)
    assert found.is_cuda
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


def test_the_fake_divides_as_cuda_does() -> None:
    """A number is no divisor there; a tensor on the device is."""
    levels = torch.arange(256, dtype=torch.uint8)
    expected = levels.to(torch.float32) / 255
    with CudaDivision():
        assert (levels.to(torch.float32) / 255 != expected).sum() == 126
        assert (torch.div(levels, 255.0, out=torch.empty(256)) != expected).sum() == 126
        assert torch.equal(levels.to(torch.float32) / torch.full((1,), 255.0), expected)


@pytest.mark.parametrize(
    ("size", "result", "filter", "refused"),
    [
        ((4800, 4800), (100, 100), "bicubic", True),  # by 48
        ((4600, 4600), (100, 100), "bicubic", False),
        ((9600, 9600), (100, 100), "bilinear", True),
        ((9200, 9200), (100, 100), "bilinear", False),
        ((90_000, 90), (100, 90), "bicubic", True),
        ((90, 9000), (90, 100), "bicubic", False),  # by 90 along one side only
        ((100_000, 100_000), (1, 1), "nearest", False),
        ((10, 10), (400, 400), "bicubic", False),
    ],
)
def test_which_images_torch_cannot_shrink_on_cuda(
    size: tuple[int, int], result: tuple[int, int], filter: str, refused: bool
) -> None:
    assert shrinks_too_far(size, result, filter) is refused


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_an_image_that_shrinks_too_far_is_pils(filter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("Provided interpolation parameters can not be handled with current algorithm implementation")

    monkeypatch.setattr("torch.nn.functional.interpolate", refuse)
    pixels = noise(3, 1000, 1600)
    expected = Pixels(tensor=pixels).resized(5, 8, filter, "pil").tensor
    with GpuWork():
        found = Pixels(tensor=GpuTensor.on(1, pixels)).resized(5, 8, filter, "torch").tensor
    assert found.is_cuda
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "Qwen2VLImageProcessor", "Siglip2ImageProcessor"])
def test_the_second_batch_copies_nothing_and_waits_for_nothing(name: str) -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": name, "do_convert_rgb": True}, resampling="torch")
    layout = front_end.layout(200, 150)
    with GpuWork() as work:
        for number in range(2):
            work.waits.clear()
            made = [front_end.render(Pixels(tensor=GpuTensor.on(0, noise(3, 150, 200))), layout) for _ in range(3)]
            values = [image.values for image in made]
            assert all(value.is_cuda for value in values)
            assert work.waits == [] or number == 0
