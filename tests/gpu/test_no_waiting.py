"""What must not make the host wait for the GPU, what torch's kernels refuse, and graphs that are captured meanwhile."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali import FrontEnd, SampleDecoder, VideoClips, VideoFrontEnd, batch_vision
from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali import memory_use
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.pyav import stage_clips
from tests.av.corpus import VideoRecipe, encode_video
from tests.decode.sample_images import sample_images
from tests.gpu.where import Where, values_of

CUT = ((1280, 714), (640, 360), (1920, 1080), (1280, 720))
"""Sizes of videos: all but the last are coded larger than they are shown."""
CONFIGS: dict[str, dict[str, Any]] = {
    "fixed size": {"image_processor_type": "CLIPImageProcessor"},
    "qwen2-vl": {"image_processor_type": "Qwen2VLImageProcessor"},
    "llava-next": {"image_processor_type": "LlavaNextImageProcessor"},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "do_convert_rgb": True},
}


@contextlib.contextmanager
def waiting_is_an_error(where: Where) -> Iterator[None]:
    """Makes torch raise where the host would wait, in all threads."""
    if where.kind == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CONFIGS)
def test_front_ends_and_batches_wait_for_nothing(where: Where, name: str) -> None:
    """From the second batch on: the first one copies the tables of values."""
    front_end = FrontEnd.from_processor(CONFIGS[name], dtype="bfloat16", resampling="torch")
    decoder = where.decoder(front_end=front_end)
    handles = [decoder.stage("jpg", sample_images()[each]) for each in ("jpeg-420", "jpeg-444", "jpeg-420")]
    first = batch_vision(values_of(decoder, handles))["pixel_values"]
    with waiting_is_an_error(where):
        second = batch_vision(values_of(decoder, handles))["pixel_values"]
    assert second.device.type == where.torch_device
    assert first.shape == second.shape


@pytest.mark.parametrize("name", ["Qwen2VLVideoProcessor", "LlavaOnevisionVideoProcessor"])
def test_front_ends_of_videos_wait_for_nothing(where: Where, name: str) -> None:
    front_end = VideoFrontEnd.from_processor({"video_processor_type": name}, dtype="bfloat16", num_frames=4)
    spec = VideoClips(front_end=front_end)
    data = encode_video(VideoRecipe("vp9", "webm", frames=8, size=(320, 240)))
    decoder = where.decoder(av_decode=spec)

    def decode() -> Any:
        handle, file = stage_clips("webm", data, spec, seed=0)
        file.close()
        (value,) = values_of(decoder, [handle])
        return value

    first = decode()
    with waiting_is_an_error(where):
        second = decode()
    assert torch.equal(first.values.cpu(), second.values.cpu())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_values_of_equal_bytes_have_the_bits_of_the_cpu(where: Where, name: str, dtype: Any) -> None:
    """On CUDA, torch divides by multiplying with the reciprocal of a number; values are looked up instead."""
    front_end = FrontEnd.from_processor(CONFIGS[name], dtype=dtype)
    image = SampleDecoder(front_end=front_end).decode("jpg", sample_images()["jpeg-420"])
    moved = front_end.finish(image.pixels.to(where.torch_device), image.layout)
    assert torch.equal(moved.cpu(), image.values)


@pytest.mark.parametrize("size", [(60, 12_000), (12_000, 60), (6_000, 6_000)], ids=str)
def test_an_image_that_shrinks_too_far_costs_no_other(where: Where, size: tuple[int, int]) -> None:
    """torch's kernel on CUDA refuses weights that do not fit into a block's shared memory."""
    stream = io.BytesIO()
    Image.fromarray(np.full((*size, 3), 77, np.uint8)).save(stream, "jpeg")
    sides = {"height": 56, "width": 56}
    front_end = FrontEnd.from_processor({**CONFIGS["fixed size"], "size": sides, "crop_size": sides})
    decoder = where.decoder(front_end=front_end)
    files = [sample_images()["jpeg-420"], stream.getvalue(), sample_images()["jpeg-420"]]
    values = values_of(decoder, [decoder.stage("jpg", data) for data in files])
    assert torch.equal(values[0].pixels, values[2].pixels)
    assert (values[1].pixels.cpu().int() - 77).abs().max() <= 2
    assert values[1].pixels.device.type == where.torch_device


@pytest.mark.costly_dry_run
def test_memory_over_300_clips_of_many_sizes_stays_within_the_budget(where: Where) -> None:
    """DALI keeps 100 hardware decoders; sizes whose decoders do not fit into a quarter of the budget are PyAV's."""
    spec = VideoClips(1, 4)
    decoder = where.decoder(av_decode=spec, gpu_memory_budget_bytes=2 << 30)
    count = 300 if where.kind == "gpu" else 6
    sizes = [(320 + 16 * (number % 10), 240 + 16 * (number % 7)) for number in range(70)]
    # Those whose frames are cut, for which DALI's cache never finds a decoder, and two that share a coded size.
    sizes = [size for number, size in enumerate(sizes) for size in (size, CUT[number % len(CUT)])]
    before = where.used_bytes()
    for number in range(count):
        recipe = VideoRecipe(frames=4, size=sizes[number % len(sizes)])
        handle, file = stage_clips("mp4", encode_video(recipe), spec, seed=0)
        file.close()
        values_of(decoder, [handle])
    if where.kind == "gpu":
        (use,) = [use for device, use in memory_use() if device.startswith("gpu") and use.budget_bytes == 2 << 30]
        assert use.kept_bytes <= 512 << 20
        assert where.used_bytes() - before < 4 << 30


def test_a_graph_is_captured_while_blocks_are_decoded() -> None:
    """With results in torch's own memory, DALI frees nothing that makes it wait for the device."""
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="gpu", tuning=DaliTuning(copies_to_torch=True))
    handles = [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(16)]
    values_of(decoder, handles)
    weights = torch.ones(64, device="cuda")
    made = weights * 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    futures = [decoder.submit_block(handles) for _ in range(8)]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(200):
            made = made + weights
    for future in futures:
        future.result(60)
    graph.replay()
    torch.cuda.synchronize()
    assert made.min().item() == 201
