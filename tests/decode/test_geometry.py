"""Operations folded into one box give the same result as one after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_dali.decode import (
    CenterCrop,
    HorizontalFlip,
    ImageSpec,
    MediaHandle,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from energon_dali.decode.geometry import Geometry, draw_geometry, handle_geometry, resized_size
from energon_dali.decode.images import transform
from energon_dali.decode.operations import GeometricOperation
from energon_dali.errors import DecodeError
from tests.decode.sample_images import photograph

sides = st.integers(1, 700)
sizes = st.one_of(st.integers(1, 300), st.tuples(st.integers(1, 300), st.integers(1, 300)))
operations = st.lists(
    st.one_of(
        st.builds(Resize, sizes),
        st.builds(RandomResizedCrop, sizes),
        st.builds(CenterCrop, sizes),
        st.builds(RandomCrop, sizes),
        st.builds(HorizontalFlip),
    ),
    max_size=5,
)


@given(operations, sides, sides, st.integers(0, 2**64 - 1))
def test_any_fold_lies_inside_the_image(
    operations: list[GeometricOperation], width: int, height: int, seed: int
) -> None:
    try:
        geometry = draw_geometry(operations, width, height, seed)
    except DecodeError:
        return  # a crop that is too large has its own test
    assert geometry == draw_geometry(operations, width, height, seed)
    if geometry is None:
        return
    assert geometry.out_height >= 1
    assert geometry.out_width >= 1
    assert geometry.height > 0
    assert geometry.width > 0
    top, left, window_height, window_width = geometry.window
    slack = 1e-6 * max(width, height)
    assert 0 <= top <= geometry.top + slack
    assert 0 <= left <= geometry.left + slack
    assert geometry.top + geometry.height <= top + window_height + slack <= height + 2 * slack
    assert geometry.left + geometry.width <= left + window_width + slack <= width + 2 * slack


def test_no_operation_and_no_change_are_none() -> None:
    assert draw_geometry((), 30, 20) is None
    assert draw_geometry((Resize((20, 30)), CenterCrop((20, 30)), HorizontalFlip(0.0)), 30, 20, 5) is None
    assert draw_geometry((HorizontalFlip(1.0), HorizontalFlip(1.0)), 30, 20, 5) is None
    assert draw_geometry((HorizontalFlip(1.0),), 30, 20) == Geometry(0, 0, 20, 30, 20, 30, True, (0, 0, 20, 30))


@pytest.mark.parametrize(
    ("size", "height", "width", "expected"),
    [
        (256, 333, 500, (256, 384)),
        (256, 500, 333, (384, 256)),
        (256, 256, 256, (256, 256)),
        (7, 1, 1000, (7, 7000)),
        (1, 1000, 999, (1, 1)),
        ((5, 6), 100, 100, (5, 6)),
    ],
)
def test_resized(size: int | tuple[int, int], height: int, width: int, expected: tuple[int, int]) -> None:
    assert resized_size(size, height, width) == expected


def one_after_another(image: Image.Image, operations: list[GeometricOperation]) -> Image.Image:
    """Applies operations without random draws, one at a time."""
    for operation in operations:
        if isinstance(operation, Resize):
            height, width = resized_size(operation.size, image.height, image.width)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        elif isinstance(operation, HorizontalFlip):
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        elif isinstance(operation, CenterCrop):
            out_height, out_width = operation.size  # type: ignore[misc]
            top, left = round((image.height - out_height) / 2), round((image.width - out_width) / 2)
            image = image.crop((left, top, left + out_width, top + out_height))
    return image


@pytest.mark.parametrize(
    "operations",
    [
        [Resize(64), CenterCrop(48)],
        [CenterCrop(100), Resize(64)],
        [CenterCrop((100, 131)), HorizontalFlip(1.0), CenterCrop((61, 40))],
        [HorizontalFlip(1.0), CenterCrop((51, 100))],
        [Resize((300, 201)), CenterCrop((99, 50)), HorizontalFlip(1.0)],
        [HorizontalFlip(1.0), Resize(90), CenterCrop((90, 51))],
        [CenterCrop((101, 102)), Resize((50, 51)), CenterCrop(20)],
    ],
    ids=str,
)
def test_the_fold_gives_what_the_operations_give(operations: list[GeometricOperation]) -> None:
    image = photograph("coffee")
    geometry = draw_geometry(operations, image.width, image.height)
    assert geometry is not None
    folded = transform(image, geometry, ImageSpec("pil", tuple(operations)))
    # One level: the position of a mirrored box is rounded in another position of the filter.
    expected = np.asarray(one_after_another(image, operations)).astype(int)
    assert folded.size == (expected.shape[1], expected.shape[0])
    assert np.abs(np.asarray(folded) - expected).max() <= 1


@pytest.mark.parametrize("antialias", [True, False], ids=["antialias", "plain"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(23, 31), (150, 170), (310, 401)], ids=["smaller", "like", "larger"])
def test_the_window_of_a_crop_after_a_resize_holds_all_that_the_filter_reads(
    size: tuple[int, int], interpolation: Any, antialias: bool
) -> None:
    """On noise, so that a missing pixel shows, and in floats, because PIL rounds bytes between its two passes."""
    noise = np.random.default_rng(3).integers(0, 2, (151, 173)) * 255
    image = Image.fromarray(noise.astype(np.float32 if antialias else np.uint8))
    operations = (Resize(size, interpolation, antialias=antialias), RandomCrop((13, 11)))
    for seed in range(20):
        geometry = draw_geometry(operations, image.width, image.height, seed)
        assert geometry is not None
        assert geometry.window != (0, 0, 151, 173)
        spec = ImageSpec("pil", operations)
        got = np.asarray(transform(image, geometry, spec))
        expected = np.asarray(transform(image, replace(geometry, window=(0, 0, 151, 173)), spec))
        # PIL keeps the corner of the box, up to 173, in float32: 2**-17 of a pixel.
        np.testing.assert_allclose(got, expected, rtol=0, atol=255 * 2**-15 if antialias else 0)


@pytest.mark.parametrize(
    ("operation", "window"),
    [  # the box is rows 80 to 120 and columns 120 to 180 of the source, 4 and 6 pixels per pixel of the result
        (Resize((50, 50)), (75, 113, 50, 74)),
        (Resize((50, 50), "bicubic"), (71, 107, 58, 86)),
        (Resize((50, 50), "nearest"), (77, 116, 46, 68)),
        (Resize((50, 50), antialias=False), (78, 118, 44, 64)),
    ],
    ids=["bilinear", "bicubic", "nearest", "plain"],
)
def test_the_margin_of_a_crop_after_a_resize(operation: Resize, window: tuple[int, int, int, int]) -> None:
    """The filter's radius in pixels of the source, plus one pixel for rounding by decoders, cut at the edge of the
    image."""
    geometry = draw_geometry((operation, CenterCrop(10)), 300, 200)
    assert geometry == Geometry(80, 120, 40, 60, 10, 10, False, window)
    cut = draw_geometry((CenterCrop((42, 61)), operation, CenterCrop((48, 49))), 300, 200)
    assert cut is not None
    assert cut.window == (79, 120, 42, 61)


def test_a_crop_that_is_too_large_names_both_sizes() -> None:
    with pytest.raises(DecodeError, match=r"CenterCrop wants 64 x 32 pixels.*has 40 x 90 there.*Put a Resize before"):
        draw_geometry((CenterCrop((64, 32)),), 90, 40)
    with pytest.raises(DecodeError, match="RandomCrop wants 64 x 64"):
        draw_geometry((Resize(64), RandomCrop((64, 64)), RandomCrop(63), RandomCrop(64)), 90, 40)


def test_random_resized_crops_are_uniform_in_area_and_inside_the_ratio() -> None:
    operation = RandomResizedCrop(32, scale=(0.2, 0.8))
    boxes = [draw_geometry((operation,), 500, 400, seed) for seed in range(4000)]
    areas = np.array([box.height * box.width / 200_000 for box in boxes if box])
    ratios = np.array([box.width / box.height for box in boxes if box])
    # The mean of 4000 uniform draws is within 5 standard errors of 0.5; large boxes are redrawn if they do not fit.
    assert abs(areas.mean() - 0.5) < 5 * 0.6 / math.sqrt(12 * 4000) + 0.02
    assert areas.min() > 0.195
    assert areas.max() < 0.805
    assert ratios.min() > 0.74
    assert ratios.max() < 1.35
    assert len({box.top for box in boxes if box}) > 100


def test_random_resized_crop_falls_back_to_the_centre() -> None:
    wide = draw_geometry((RandomResizedCrop(8, scale=(1.0, 1.0)),), 1000, 10, 3)
    assert wide is not None
    assert (wide.top, wide.left, wide.height, wide.width) == (0, 493, 10, 13)
    tall = draw_geometry((RandomResizedCrop(8, scale=(1.0, 1.0)),), 10, 1000, 3)
    assert tall is not None
    assert (tall.top, tall.left, tall.height, tall.width) == (493, 0, 13, 10)


def test_flips_and_crops_are_fair() -> None:
    flips = [draw_geometry((HorizontalFlip(0.25),), 10, 10, seed) is not None for seed in range(4000)]
    assert abs(sum(flips) / 4000 - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000)
    crops = {
        (box.top, box.left)
        for box in (draw_geometry((RandomCrop(8),), 10, 9, seed) for seed in range(500))
        if box is not None
    }
    assert crops == {(top, left) for top in range(2) for left in range(3)}


def test_golden_geometry() -> None:
    """The same seed gives the same crop in every version: a change here breaks the restart of running jobs."""
    geometry = draw_geometry((RandomResizedCrop(224), HorizontalFlip()), 500, 400, 7)
    assert geometry == Geometry(28.0, 39.0, 194.0, 238.0, 224, 224, True, (28, 39, 194, 238))


def test_the_geometry_of_a_handle_is_in_the_rotated_frame() -> None:
    for turned in (False, True):
        spec = ImageSpec("pil", (CenterCrop((90, 40)),), apply_exif_orientation=turned)
        handle = MediaHandle("jpg", b"", "jpeg", 100, 50, spec, orientation=6)
        if turned:
            assert handle_geometry(handle) == Geometry(5, 5, 90, 40, 90, 40, False, (5, 5, 90, 40))
        else:
            with pytest.raises(DecodeError, match="has 50 x 100 there"):
                handle_geometry(handle)
    assert handle_geometry(MediaHandle("jpg", b"", "jpeg", 100, 50, ImageSpec("pil"))) is None
