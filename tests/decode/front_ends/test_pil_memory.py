"""Pixels read where PIL keeps them are those that its own methods return."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali.decode.front_ends import pil_memory, resampling
from energon_dali.decode.front_ends.pil_memory import pixel_memory, split_planes
from energon_dali.decode.front_ends.resampling import Filter, Pixels

_ARROW = hasattr(Image.new("RGB", (1, 1)).im, "__arrow_c_array__")


def _image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.skipif(not _ARROW, reason="this PIL is older than 11.2")
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (130, 61)])
def test_memory_outlives_its_image(size: tuple[int, int]) -> None:
    image = _image(*size)
    expected, memory = np.array(image), pixel_memory(image)
    del image
    others = [_image(*size) for _ in range(20)]
    assert memory is not None
    assert np.array_equal(memory[..., :3], expected)
    assert len(others) == 20


def test_memory_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Image.new("RGB", (2100, 2100), (1, 2, 3))  # more than one block of PIL's allocator
    assert pixel_memory(large) is None
    assert pixel_memory(Image.new("L", (4, 4))) is None
    assert split_planes(large)[:, -1, -1].tolist() == [1, 2, 3]
    monkeypatch.setattr(Image.core, "get_alignment", lambda: 32)
    assert pixel_memory(_image(7, 5)) is None


def test_an_image_that_is_not_loaded_yet() -> None:
    image, file = _image(31, 17), io.BytesIO()
    image.save(file, "PNG")
    expected = np.array(image).transpose(2, 0, 1)
    assert np.array_equal(split_planes(Image.open(file)), expected)
    by_torch, by_itself = (
        Pixels(image=opened).resized(9, 8, "bilinear", "torch").tensor for opened in (Image.open(file), image)
    )
    assert torch.equal(by_torch, by_itself)


@pytest.mark.parametrize("readable", [True, False])
def test_planes(monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    if not readable:
        monkeypatch.setattr(pil_memory, "pixel_memory", lambda image: None)
    image = _image(31, 17)
    assert np.array_equal(split_planes(image), np.array(image).transpose(2, 0, 1))


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(61, 130), (33, 130), (20, 21), (1, 1), (1, 40), (90, 21)])
def test_shrinking_gives_the_same_with_and_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, filter: Filter, size: tuple[int, int]
) -> None:
    image = _image(130, 61)
    found = Pixels(image=image).resized(*size, filter, "torch").tensor
    monkeypatch.setattr(resampling, "pixel_memory", lambda image: None)
    copied = Pixels(image=image).resized(*size, filter, "torch").tensor
    assert found.shape == (3, *size)
    assert torch.equal(found, copied)
