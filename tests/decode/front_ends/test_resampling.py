"""`resampling="torch"` against "pil": the tolerance that docs/vlm.md states, in levels of 255."""

from __future__ import annotations

import io
import random
from typing import Any, get_args

import pytest
import torch
from PIL import Image

from energon_dali.decode.front_ends.resampling import FILTER_NAMES, PIL_FILTERS, Pixels, Resampling
from tests.decode.front_ends.images import draw_images

MEAN_LEVELS = 0.3
"""Most levels by which an image differs on average. torch's weights have 16 bits, PIL's 22, so a value whose fraction
is near one half is rounded the other way: at most every fourth value, by one level, in each of the two passes."""
LARGEST_LEVELS = {"bilinear": 1, "bicubic": 16}
"""Largest difference of a value. PIL chooses which side it resamples first; torch begins with the width. A bicubic
filter overshoots at edges, and each pass cuts off what is above 255 or below 0, so that the order matters there."""
WITHIN_ONE_LEVEL = 0.999
"""Least share of all values that differ by one level at most."""


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_torch_is_within_the_written_tolerance_of_pil(filter: Any) -> None:
    draw = random.Random(7)
    within = total = 0
    for what, _, data in draw_images(24, 5, largest=400, extremes=False):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        height, width = (max(1, round(side * draw.uniform(0.2, 2.2))) for side in (image.height, image.width))
        by_pil = Pixels(image=image).resized(height, width, filter, "pil").tensor
        by_torch = Pixels(image=image).resized(height, width, filter, "torch").tensor
        levels = (by_pil.int() - by_torch.int()).abs()
        assert levels.float().mean() <= MEAN_LEVELS, what
        assert levels.max() <= LARGEST_LEVELS[filter], what
        within, total = within + int((levels <= 1).sum()), total + levels.numel()
    assert within / total >= WITHIN_ONE_LEVEL


@pytest.mark.parametrize("filter", sorted(set(PIL_FILTERS) - {"bilinear", "bicubic", "nearest"}))
def test_filters_that_torch_does_not_have_are_pils(filter: Any) -> None:
    image = Image.effect_noise((40, 30), 60).convert("RGB")
    by_pil = Pixels(image=image).resized(17, 23, filter, "pil").tensor
    assert torch.equal(Pixels(image=image).resized(17, 23, filter, "torch").tensor, by_pil)
    assert FILTER_NAMES[int(PIL_FILTERS[filter])] == filter


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_torch_makes_one_pixel_of_separate_planes(filter: Any) -> None:
    planes = torch.randint(0, 256, (3, 30, 44), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    one, expected = (Pixels(tensor=planes).resized(1, 1, filter, by).tensor for by in get_args(Resampling))
    assert one.shape == (3, 1, 1)
    assert (one.int() - expected.int()).abs().max() <= 1
