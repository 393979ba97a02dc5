"""The nearest palette colour of each pixel: compared with squared distances in integers and in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from energon_dali.kernels.color_quantize import Palette, color_quantize

CORNERS = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 255], [128, 128, 128]])


def pixels_of(shape: tuple[int, ...]) -> Any:
    """Returns uint8[*shape, 3]; the corners of the cube are included if there is room."""
    pixels = np.random.default_rng(len(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    flat = pixels.reshape(-1, 3)
    flat[: len(CORNERS)] = CORNERS[: len(flat)]
    return pixels


@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (2, 3, 5), (4001,)], ids=str)
@pytest.mark.parametrize("dtype", ["int16", "int32"])
def test_whole_colours_are_found_exactly_the_lowest_of_equals(shape: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    levels = np.concatenate([CORNERS, rng.integers(0, 256, (300, 3)), CORNERS])
    pixels = pixels_of(shape)
    got = color_quantize(torch.from_numpy(pixels), Palette.from_levels(levels), dtype=dtype)
    distances = ((pixels[..., None, :].astype(np.int64) - levels) ** 2).sum(-1)
    assert got.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(got.numpy(), distances.argmin(-1))  # numpy takes the first of equal values


def test_half_way_between_two_colours_the_lower_number_is_taken() -> None:
    gray = torch.tensor([[9, 9, 9], [10, 10, 10], [11, 11, 11]], dtype=torch.uint8)
    for order, wanted in (([[0, 0, 0], [20, 20, 20]], [0, 0, 1]), ([[20, 20, 20], [0, 0, 0]], [1, 0, 0])):
        assert color_quantize(gray, Palette.from_levels(order)).tolist() == wanted


def test_other_colours_are_within_what_their_rounding_costs() -> None:
    levels = (np.random.default_rng(2).uniform(-1, 1, (512, 3)) + 1) * 127.5  # as ImageGPT's clusters
    pixels = pixels_of((9_000,))
    got = color_quantize(torch.from_numpy(pixels), Palette.from_levels(levels)).numpy()
    distances = np.sqrt(((pixels[:, None].astype(np.float64) - levels) ** 2).sum(-1))
    taken = np.take_along_axis(distances, got[:, None], 1)[:, 0]
    assert (taken - distances.min(1)).max() <= 3**0.5 / 8
    assert (got == distances.argmin(1)).mean() > 0.99


def test_the_largest_sums_are_exact_in_float32() -> None:
    worst = Palette.from_levels(CORNERS).coefficients().astype(np.float64)
    assert (np.abs(worst[:, :3]).sum(1) * 128 + worst[:, 3]).max() < 2**24


def test_wrong_arguments_are_named() -> None:
    palette = Palette.from_levels(CORNERS)
    image = torch.zeros((4, 5, 3), dtype=torch.uint8)
    for images in (image.to(torch.float32), image.movedim(-1, 0), image.transpose(0, 1), image[..., :1]):
        with pytest.raises(ValueError, match="contiguous uint8"):
            color_quantize(images, palette)
    with pytest.raises(ValueError, match="allowed are int16, int32"):
        color_quantize(image, palette, dtype="int8")  # type: ignore[arg-type]
    for levels in (np.zeros((3, 4)), np.full((1, 3), np.nan), np.zeros(3)):
        with pytest.raises(ValueError, match="a palette is"):
            Palette.from_levels(levels)
    with pytest.raises(ValueError, match=r"Colour 1 is .*0 to 2040 eighths"):
        Palette.from_levels([[0, 0, 0], [256, 0, 0]])
    with pytest.raises(ValueError, match="1 to 32768"):
        Palette(())
