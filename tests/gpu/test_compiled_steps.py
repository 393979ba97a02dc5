"""Compiled models and memory formats: what `torch.compile` and `channels_last` make of batches, and CUDA graphs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import energon_dali as ed
from energon_dali.decode.dali.tuning import DaliTuning
from tests.decode.sample_images import sample_images
from tests.gpu.where import Where, values_of
from tests.loader.dataset_folder import captioning_dataset

PIXELS = 32


def step(images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns one number per image."""
    scaled = images.to(torch.float32) / 255
    return torch.nn.functional.relu(torch.einsum("nchw,chw->n", scaled, weights))


class Crops(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches of crops with their keys."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def encode_sample(self, sample: Any) -> Any:
        return {"image": sample.image, "key": sample.__key__}

    def batch(self, samples: list[Any]) -> Any:
        return {
            "image": ed.batch_stack([sample["image"] for sample in samples]),
            "key": [sample["key"] for sample in samples],
        }


@pytest.mark.costly_dry_run
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("decode_process", [False, True])
def test_a_compiled_step_takes_every_batch(where: Where, decode_process: bool, tmp_path: Path) -> None:
    """On a GPU with CUDA graphs, which are captured while the loader decodes ahead; batches of one shape, one graph."""
    from torch._dynamo.testing import CompileCounter

    decoder = where.decoder(
        image_decode="torchrgb8",
        operations=[ed.RandomResizedCrop(PIXELS)],
        tuning=DaliTuning(copies_to_torch=not decode_process),
    )
    dataset = ed.get_train_dataset(
        captioning_dataset(tmp_path / "captions", 32, 2),
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Crops(decoder),
    )
    counter: Any = CompileCounter()
    torch._dynamo.reset()
    graphs = {"mode": "reduce-overhead"} if where.kind == "gpu" else {"backend": counter}
    compiled = torch.compile(step, **graphs)  # type: ignore[call-overload]
    weights = torch.linspace(0, 1, 3 * PIXELS**2, device=where.torch_device).view(3, PIXELS, PIXELS)
    with ed.get_loader(dataset, decode_process=decode_process) as loader:
        for batch in islice(loader, 24):
            found = compiled(batch["image"], weights).clone()
            torch.testing.assert_close(found, step(batch["image"], weights), rtol=1e-4, atol=1e-4)
    if where.kind == "cpu":
        assert counter.frame_count == 1


def test_channels_last_needs_no_copy(where: Where) -> None:
    decoder = where.decoder(image_decode="torchrgb8", image_layout="HWC")
    handles = [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(4)]
    values = values_of(decoder, handles)
    stacked = ed.batch_stack(values)
    images = stacked.permute(0, 3, 1, 2)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.data_ptr() == stacked.data_ptr()
    planes = where.decoder(image_decode="torchrgb8")
    expected = values_of(planes, [planes.stage("jpg", sample_images()["jpeg-420"])])[0]
    assert torch.equal(images[1], expected)


def test_a_batch_inside_a_capture_is_an_error_and_the_loader_goes_on() -> None:
    """The message names the cause. After it CUDA still works, and no batch is lost."""
    decoder = ed.DaliDecoder(image_decode="torchrgb8", image_decode_device="gpu")
    handles = [decoder.stage("jpg", sample_images()["jpeg-420"])]
    (expected,) = values_of(decoder, handles)
    graph = torch.cuda.CUDAGraph()
    made = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        made + 1
        with pytest.raises(ed.errors.ConfigError, match="while this thread captures a CUDA graph"):
            decoder.decode_block(handles)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(values_of(decoder, handles)[0], expected)
