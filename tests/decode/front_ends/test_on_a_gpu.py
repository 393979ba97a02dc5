"""Front ends on a GPU: the bits of the CPU, no waiting, and what torch's kernels refuse. CUDA is a fake."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from energon_dali import FrontEnd, VideoFrontEnd
from energon_dali.decode.front_ends import video_front_end
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.resampling import Pixels, shrinks_too_far
from tests.fake_cuda import CudaDivision, GpuTensor, GpuWork, Launches

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
    """Nothing is divided by a number there, only by a tensor on the device."""
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


CONFIGS: dict[str, dict[str, Any]] = {
    "fixed size": {"image_processor_type": "CLIPImageProcessor"},
    "qwen2-vl": {"image_processor_type": "Qwen2VLImageProcessor"},
    "internvl": {"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": True, "max_patches": 6},
    "llava-next": {"image_processor_type": "LlavaNextImageProcessor"},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "do_convert_rgb": True},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 224, "width": 224}},
    "pixtral": {"image_processor_type": "PixtralImageProcessor"},
}
VIDEOS: dict[str, dict[str, Any]] = {
    "qwen2-vl": {"video_processor_type": "Qwen2VLVideoProcessor"},
    "qwen3-vl": {"video_processor_type": "Qwen3VLVideoProcessor"},
    "llava-onevision": {"video_processor_type": "LlavaOnevisionVideoProcessor"},
    "internvl": {"video_processor_type": "InternVLVideoProcessor"},
}


def smooth(*shape: int) -> torch.Tensor:
    """Returns images without edges, of which CUDA's resampling of floats makes what the CPU's of bytes makes."""
    small = noise(*shape[:-2], 3, 4).float() / 2 + 64
    flat = torch.nn.functional.interpolate(small.view(-1, 3, 3, 4), shape[-2:], mode="bilinear")
    return flat.view(shape).round().to(torch.uint8)


def on_cpu(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(torch.Tensor)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_images_of_one_size_are_rendered_at_once_to_what_each_becomes(name: str, dtype: Any) -> None:
    """Their layouts, bytes and values; the kernels are as many as for one image, and later batches wait for nothing."""
    front_end = FrontEnd.from_processor(CONFIGS[name], resampling="torch", dtype=dtype)
    layout = front_end.layout(200, 150)
    images = smooth(4, 3, 150, 200)
    expected = [front_end.render(Pixels(tensor=image), layout) for image in images]
    with GpuWork() as work:
        found = front_end.render_alike(GpuTensor.on(0, images), layout)
        front_end.concatenated(found)  # which copies the table of values, once
        work.waits.clear()
        with Launches() as alone:
            one = front_end.render_alike(GpuTensor.on(0, images[:1]), layout)
        with Launches() as together:
            again = front_end.render_alike(GpuTensor.on(0, images), layout)
        with Launches() as joined:
            values = front_end.concatenated(again)
        assert work.waits == []
    assert len(together.names) <= len(alone.names) + 1  # resampling on this CPU's stand-in may copy once more
    for ours, one_of, theirs in zip(found, [*one, None, None, None], expected, strict=True):
        assert ours.layout == theirs.layout
        levels = (on_cpu(ours.pixels).int() - theirs.pixels.int()).abs()
        # The CPU rounds after each of the two passes, CUDA's floats once.
        assert levels.max() <= 2
        assert one_of is None or torch.equal(on_cpu(one_of.pixels), on_cpu(ours.pixels))
    wanted = torch.cat([image.front_end.finish(on_cpu(image.pixels), layout) for image in found])
    if isinstance(values, torch.Tensor):
        assert torch.equal(on_cpu(values).reshape(wanted.shape), wanted)
        if type(front_end).concatenated is FrontEnd.concatenated:  # others pad between images
            assert len(joined.names) < 10


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
@pytest.mark.parametrize("name", VIDEOS)
def test_frames_of_a_video_are_rendered_at_once(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    front_end = VideoFrontEnd.from_processor(VIDEOS[name], dtype=dtype, num_frames=6)
    layout = front_end.layout(80, 60, 6, 2.0)
    frames = smooth(6, 3, 60, 80)
    expected = front_end.render_frames(frames, layout)
    counts = []
    for at_once in (1 << 40, 0):  # all frames, or as few as belong together
        monkeypatch.setattr(video_front_end, "_FLOAT_BYTES", at_once)
        with GpuWork() as work:
            front_end.render_frames(GpuTensor.on(0, frames), layout)
            work.waits.clear()
            with Launches() as launches:
                found = front_end.render_frames(GpuTensor.on(0, frames), layout)
            assert work.waits == []
        counts.append(len(launches.names))
        assert found.is_cuda
        assert found.shape == expected.shape
        if dtype == "uint8":
            assert (on_cpu(found).int() - expected.int()).abs().max() <= 1  # CUDA resamples floats
        else:
            assert (on_cpu(found).float() - expected.float()).abs().max() <= 0.04
    assert counts[0] < counts[1]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that `merge_patches` was given: it is one kernel on a GPU, and its reference runs here."""
    from energon_dali.kernels import merge_patches as module

    given: list[tuple[int, ...]] = []
    merge_patches = module.merge_patches

    def count(frames: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        given.append(tuple(frames.shape))
        return merge_patches(frames, *arguments, **options)

    monkeypatch.setattr(module, "merge_patches", count)
    return given


@pytest.mark.parametrize(("name", "cuts"), [("qwen2-vl", 1), ("siglip2", 1), ("fixed size", 0), ("llava-next", 0)])
def test_a_batch_of_images_of_one_size_takes_one_kernel_to_cut_and_one_for_values(
    name: str, cuts: int, kernels: list[tuple[int, ...]]
) -> None:
    """Between the two an image is bytes, half of what it takes as bfloat16."""
    front_end = FrontEnd.from_processor(CONFIGS[name], resampling="torch", dtype="bfloat16")
    layout = front_end.layout(200, 150)
    with GpuWork():
        rendered = front_end.render_alike(GpuTensor.on(0, smooth(5, 3, 150, 200)), layout)
        assert [shape[0] for shape in kernels] == [5] * cuts
        kernels.clear()
        front_end.concatenated(rendered)
    assert len(kernels) == (5 if name == "llava-next" else 1)  # which pads between images


@pytest.mark.parametrize(
    ("name", "frames"), [("qwen2-vl", 6), ("qwen3-vl", 8), ("llava-onevision", 5), ("internvl", 5)]
)
def test_all_frames_of_a_video_are_in_one_kernel(name: str, frames: int, kernels: list[tuple[int, ...]]) -> None:
    """Cut, merged, normalised and converted; nothing makes the host wait."""
    front_end = VideoFrontEnd.from_processor(VIDEOS[name], dtype="bfloat16", num_frames=frames)
    layout = front_end.layout(80, 60, frames, 2.0)
    with GpuWork() as work:
        front_end.render_frames(GpuTensor.on(0, smooth(frames, 3, 60, 80)), layout)  # which copies the table of values
        kernels.clear()
        work.waits.clear()
        front_end.render_frames(GpuTensor.on(0, smooth(frames, 3, 60, 80)), layout)
    assert len(kernels) == 1
    assert frames in kernels[0][:2]
    assert work.waits == []
