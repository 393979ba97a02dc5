"""Each way in which bytes become values on the CPU gives the table of the 256 levels, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from energon_dali.decode.front_ends import pixel_values
from energon_dali.decode.front_ends.pixel_values import PixelValues

_CLIP = PixelValues(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
_SHAPES = {
    "patches": (40, 3, 196),
    "odd patches": (40, 3, 225),
    "tiles": (2, 3, 3000),
    "one tile": (1, 3, 2500),
    "gray": (7, 1, 100),
    "nothing": (0, 3, 196),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_values, "_CHUNK_VALUES", 1 << 11)
    monkeypatch.setattr(pixel_values, "_CHUNK_PAIRS", 1 << 10)
    monkeypatch.setattr(pixel_values, "_FEW_VALUES", 1)


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
@pytest.mark.parametrize("values", [_CLIP, PixelValues(), PixelValues(mean=(0.5,), std=(0.5,), arithmetic="torch")])
def test_values_are_those_of_the_table(
    values: PixelValues, shape: tuple[int, int, int], dtype: torch.dtype, repeat: int
) -> None:
    if shape[1] == 1 and values is _CLIP:
        values = PixelValues(mean=(0.4,), std=(0.3,))
    pixels = torch.from_numpy(np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8))
    table = torch.from_numpy(np.array(values.table(shape[1]))).to(dtype)
    expected = torch.stack([table[channel][pixels[:, channel].long()] for channel in range(shape[1])], 1)
    if repeat > 1:
        expected = expected[:, :, None].expand(-1, -1, repeat, -1)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    made = values.convert(pixels, dtype, channel_axis=1, repeat=repeat)
    assert torch.equal(made.view(bits), expected.contiguous().view(bits))
    # Memory that does not begin at a pair, or is not contiguous, is filled with the same.
    shifted = torch.empty(pixels.numel() + 1, dtype=torch.uint8)[1:].view(shape).copy_(pixels)
    wide = torch.zeros((*made.shape[:-1], 2 * shape[2]), dtype=dtype)[..., ::2]
    assert torch.equal(values.convert(shifted, dtype, channel_axis=1, repeat=repeat), made)
    assert torch.equal(values.convert(pixels, dtype, channel_axis=1, repeat=repeat, out=wide), made)
