"""Energon's MergeTransform and its CustomTransform, with stand-ins for the transforms of torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from energon_dali.compat.transforms import CustomTransform, MergeTransform

BILINEAR = PIL.Image.Resampling.BILINEAR
SIZES = [(21, 14), (14, 21), (40, 40), (13, 29), (60, 5), (33, 50)]
"""Width and height in pixels."""


class RandomRotation:
    """Has the attributes of torchvision's class, and draws no angle."""

    interpolation = "bilinear"
    fill = 0
    center = None
    expand = True

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def get_params(self, degrees: float) -> float:
        return degrees


def sample_image(size: tuple[int, int]) -> PIL.Image.Image:
    """A gradient, without an edge on which a shift of less than a pixel shows as a large difference."""
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    return PIL.Image.fromarray((rows * 100 / height + columns * 100 / width + 50).astype(np.uint8))


@pytest.mark.parametrize("degrees", [0, 30, 45, 90, -90, 180, 270, 37.3, -141.9, 89.9, 0.01])
@pytest.mark.parametrize("size", SIZES)
def test_an_expanding_rotation_is_that_of_pil(size: tuple[int, int], degrees: float) -> None:
    """torchvision rotates PIL images by `Image.rotate`."""
    ours = MergeTransform([RandomRotation(degrees)])(sample_image(size))
    theirs = sample_image(size).rotate(degrees, BILINEAR, expand=True)
    assert ours.size == theirs.size
    difference = np.abs(np.asarray(ours, np.int16) - np.asarray(theirs))
    assert np.median(difference) <= 1


@pytest.mark.parametrize("degrees", [0, 30, 45, 180, 37.3, -141.9])
@pytest.mark.parametrize("size", SIZES)
def test_an_expanded_tensor_is_as_large_as_an_image(size: tuple[int, int], degrees: float) -> None:
    warped = MergeTransform([RandomRotation(degrees)])(torch.ones(1, size[1], size[0]))
    assert tuple(warped.shape[:0:-1]) == sample_image(size).rotate(degrees, expand=True).size


def test_a_right_angle_gives_a_tensor_the_odd_pixel_of_torchvision() -> None:
    """It keeps the centre: a side grows by a pixel where the other one is not as even or odd."""
    assert MergeTransform([RandomRotation(90)])(torch.ones(1, 20, 13)).shape == (1, 14, 21)
    assert MergeTransform([RandomRotation(90)])(torch.ones(1, 20, 14)).shape == (1, 14, 20)


class Shift(CustomTransform):
    """Has no call of `super().__init__()`."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels

    def apply_transform(self, matrix: Any, dst_size: Any) -> Any:
        return self.translate(self.pixels, 0) @ matrix, dst_size, None


def test_a_custom_transform_without_the_constructor_of_its_base() -> None:
    image = sample_image((20, 10))
    shifted = MergeTransform([Shift(3)])(image)
    assert np.array_equal(np.asarray(shifted)[:, 3:], np.asarray(image)[:, :-3])
    assert not np.asarray(shifted)[:, :3].any()
