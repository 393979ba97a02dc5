"""Ragged images as one padded batch: compared with numpy in float64, and with batch_pad_stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from energon_dali.kernels.normalization import Normalization
from energon_dali.kernels.pad_stack import pad_stack

from energon_dali import batch_pad_stack
from tests.kernels.ragged import SIZES, images_of

IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def padded(images: list[torch.Tensor], height: int, width: int) -> Any:
    """Returns uint8[n, height, width, C], padded with zeros at the end."""
    ends = [((0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0)) for image in images]
    return np.stack([np.pad(image.numpy(), end) for image, end in zip(images, ends, strict=True)])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_bytes_are_those_of_batch_pad_stack_in_every_layout(sizes: Any) -> None:
    images = images_of(sizes, 3)
    wanted = batch_pad_stack(images)
    assert torch.equal(pad_stack(images, layout="HWC"), wanted)
    assert torch.equal(pad_stack(images), wanted.movedim(-1, 1))
    planes = [image.movedim(-1, 0).contiguous() for image in images]
    assert torch.equal(pad_stack(planes, input_layout="CHW", layout="HWC"), wanted)
    assert pad_stack(images).is_contiguous()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_floats_are_normalised_and_padding_is_zero(sizes: Any, dtype: Any, bits: int) -> None:
    images = images_of(sizes, 3)
    size = (max(height for height, _ in sizes) + 2, max(width for _, width in sizes) + 1)
    levels, inside = padded(images, *size), padded([torch.ones_like(image) for image in images], *size) == 1
    wanted = np.where(inside, (levels / 255 - np.array(IMAGENET.mean)) / np.array(IMAGENET.std), 0)
    got = pad_stack(images, dtype=dtype, normalization=IMAGENET, layout="HWC", size=size)
    assert got.dtype == getattr(torch, dtype)
    # Half a unit in the last place of the dtype, and in float32 the rounding of the mean (at most 2**-25 of 124
    # levels, of the 57 that a std is), of the difference and of the quotient.
    bound = np.abs(wanted) * (2.0**-bits + 3 * 2.0**-24) + 124 / 57 * 2.0**-24
    assert (np.abs(got.to(torch.float64).numpy() - wanted) <= bound).all()
    assert (got.to(torch.float64).numpy()[~inside] == 0).all()


def test_without_numbers_floats_are_the_bytes_by_255() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 16, 1)
    assert torch.equal(pad_stack([every], dtype="float32")[0, 0], every[..., 0].to(torch.float32) / 255)
    scaled = pad_stack([every], dtype="float32", normalization=Normalization(mean=127.5, std=0.5, scale=1.0))
    assert torch.equal(scaled[0, 0], (every[..., 0].to(torch.float32) - 127.5) * 2)


def test_only_the_images_that_are_named_are_mirrored() -> None:
    images = images_of([(4, 5), (3, 7), (0, 2)], 3)
    wanted = pad_stack([images[0], images[1].flip(1), images[2]])
    assert torch.equal(pad_stack(images, flips=[False, True, True]), wanted)


def test_wrong_arguments_are_named() -> None:
    image = images_of([(4, 5)], 3)[0]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "No images were given"),
        ([image.to(torch.float32)], {}, "must be uint8 with the axes HWC"),
        ([image, image[..., :1]], {}, "image 1 has shape .*same device, rank and number of channels"),
        ([image[None]], {}, "3 axes, not clips"),
        ([image], {"layout": "WHC"}, "allowed are HWC, CHW"),
        ([image], {"input_layout": "WHC"}, "allowed are HWC, CHW"),
        ([image], {"dtype": "int8"}, "allowed are uint8, float32"),
        ([image], {"normalization": IMAGENET}, "ask for a floating dtype"),
        ([image[..., :1]], {"normalization": IMAGENET, "dtype": "float32"}, "images of 1 channels"),
        ([image], {"flips": [True, False]}, "give one per image"),
        ([image], {"size": (4, 4)}, "images of up to 4 x 5: give at least that"),
        ([image], {"size": (1 << 16, 1 << 16)}, "at most 2147481600 pixels"),
    ]
    for images, options, message in cases:
        with pytest.raises(ValueError, match=message):
            pad_stack(images, **options)
    with pytest.raises(ValueError, match="must be above zero"):
        Normalization(std=(1.0, 0.0))
