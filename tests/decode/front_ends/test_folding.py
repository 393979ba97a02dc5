"""Bytes through a folded layer equal values through the layer as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from energon_dali import FrontEnd, SampleDecoder
from energon_dali.errors import ConfigError
from tests.decode.sample_images import sample_images

QWEN = {"image_processor_type": "Qwen2VLImageProcessor"}
SIGLIP2 = {"image_processor_type": "Siglip2ImageProcessor", "do_convert_rgb": True}
SIGLIP = {"image_processor_type": "SiglipImageProcessor"}
CLIP = {"image_processor_type": "CLIPImageProcessor"}


@pytest.mark.parametrize(
    ("config", "make", "shape"),
    [
        pytest.param(
            QWEN, lambda: nn.Conv3d(3, 8, (2, 14, 14), (2, 14, 14), bias=False), (-1, 3, 2, 14, 14), id="Qwen2-VL"
        ),
        pytest.param(QWEN, lambda: nn.Linear(1176, 8), (-1, 1176), id="Qwen2-VL, linear"),
        pytest.param(SIGLIP2, lambda: nn.Linear(768, 8), (-1, 768), id="SigLIP 2"),
        pytest.param(CLIP, lambda: nn.Conv2d(3, 8, 32, 32), (-1, 3, 224, 224), id="CLIP"),
        pytest.param(SIGLIP, lambda: nn.Conv2d(3, 8, 16, 16, padding="valid"), (-1, 3, 224, 224), id="SigLIP"),
        pytest.param(SIGLIP, lambda: nn.Conv2d(3, 8, 1, padding="same"), (-1, 3, 224, 224), id="SigLIP, pixels"),
    ],
)
def test_bytes_through_the_folded_layer(config: Any, make: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = make()
    values = SampleDecoder(front_end=FrontEnd.from_processor(config)).decode("jpg", sample_images()["jpeg-420"]).values
    expected = layer(values.view(shape))
    front_end = FrontEnd.from_processor(config, dtype="uint8")
    levels = SampleDecoder(front_end=front_end).decode("jpg", sample_images()["jpeg-420"]).values
    assert levels.dtype == torch.uint8
    front_end.fold_normalization(layer)
    torch.testing.assert_close(layer(levels.view(shape).float()), expected, atol=2e-4, rtol=1e-4)


def test_what_cannot_be_folded() -> None:
    front_end = FrontEnd.from_processor(CLIP, dtype="uint8")
    with pytest.raises(ConfigError, match=r"cannot be folded into a ReLU.*Conv2d, Conv3d or Linear"):
        front_end.fold_normalization(nn.ReLU())
    for padding in (1, "same"):
        with pytest.raises(ConfigError, match=f"pads with zeros .padding=.*{padding}"):
            front_end.fold_normalization(nn.Conv2d(3, 8, 16, padding=padding))  # type: ignore[arg-type]
    for layer in (nn.Conv2d(3, 6, 16, groups=3), nn.Conv2d(4, 8, 16)):
        with pytest.raises(ConfigError, match=r"Conv2d.*does not take all of 3 channels at once"):
            front_end.fold_normalization(layer)
    with pytest.raises(ConfigError, match=r"Linear.*does not take patches of 3 channels"):
        front_end.fold_normalization(nn.Linear(16, 8))
    with pytest.raises(ConfigError, match=r'dtype is "float32".*dtype="uint8"'):
        FrontEnd.from_processor(CLIP).fold_normalization(nn.Linear(768, 8))
