"""DaliDecoder on a GPU: values close to the CPU's for every type name and format, and isolation of bad samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import (
    DaliDecoder,
    Decoded,
    DecodeFailure,
    HorizontalFlip,
    MediaHandle,
    Normalize,
    RandomResizedCrop,
    SampleDecoder,
)
from energon_dali.decode.dali import DaliTuning
from energon_dali.decode.dali.dispatch import DaliHandle
from tests.decode.sample_images import broken_images, sample_images
from tests.decode.tolerance import GPU, explain_difference
from tests.gpu.where import Where, values_of

JPEGS = [name for name in sample_images() if name.startswith("jpeg")]
NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def decode(decoder: DaliDecoder, files: list[bytes]) -> list[Any]:
    """Returns one value per file, including files that PIL decodes when they are staged."""
    staged = [decoder.stage("jpg", data, seed=seed) for seed, data in enumerate(files)]
    values = iter(values_of(decoder, [one for one in staged if isinstance(one, MediaHandle)]))
    return [next(values) if isinstance(one, MediaHandle) else one for one in staged]


@pytest.mark.parametrize("name", ["rgb8", "l8", "rgba8", "torchrgb8"])
def test_jpegs_are_near_the_cpu(where: Where, name: Any) -> None:
    got = decode(where.decoder(image_decode=name), [sample_images()[key] for key in JPEGS])
    for value, key in zip(got, JPEGS, strict=True):
        expected = SampleDecoder(image_decode=name).decode("jpg", sample_images()[key])
        if name == "torchrgb8":
            assert value.device.type == where.torch_device
            value, expected = value.permute(1, 2, 0).cpu().numpy(), expected.permute(1, 2, 0).numpy()
        assert explain_difference(value, np.asarray(expected), GPU) is None, key


def test_every_format_ends_on_the_gpu(where: Where) -> None:
    decoder = where.decoder(image_decode="torchrgb")
    for value in decode(decoder, list(sample_images().values())):
        assert value.device.type == where.torch_device
        assert value.dtype == torch.float32


def test_fused_training_batch_is_near_the_cpu(where: Where) -> None:
    options: dict[str, Any] = {"operations": [RandomResizedCrop(64), HorizontalFlip(), NORMALIZE]}
    files = [sample_images()[key] for key in JPEGS]
    got = decode(where.decoder(**options), files)
    wanted = decode(DaliDecoder(image_decode_device="cpu", **options), files)
    for value, expected in zip(got, wanted, strict=True):
        assert (value.cpu() - expected).abs().mean() < 0.05


def test_a_truncated_file_among_64(where: Where) -> None:
    # Use one JPEG decoder: the engine and the cores of a GPU share a block, and may round differently.
    decoder = where.decoder(image_decode="torchrgb8", tuning=DaliTuning(hw_decoder_load=0.0))
    handles = [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(64)]
    # Pretend that the damage is not visible; otherwise the screening sends the file to PIL.
    handles[9] = DaliHandle("jpg", broken_images()["jpeg-half"], "jpeg", 157, 118, decoder.spec)
    outcomes = decoder.decode_block(handles)
    alone = decode(decoder, [sample_images()["jpeg-420"]])[0]
    for i, outcome in enumerate(outcomes):
        if i != 9:
            assert isinstance(outcome, Decoded)
            assert torch.equal(outcome.value, alone)
    assert isinstance(outcomes[9], DecodeFailure | Decoded)  # nvJPEG may accept files that libjpeg-turbo rejects
