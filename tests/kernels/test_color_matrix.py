"""Conversion of colours between standards: compared with float64 formulas, and bit for bit between backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from energon_dali.kernels.color_matrix import IDENTITY, STANDARDS, ColorMatrix, convert_colors

from tests.av.ycbcr import to_rgb
from tests.fake_cuda import CudaDivision

STANDARD_NAMES = sorted(STANDARDS)
TO_709 = ColorMatrix.between("bt601", "bt709")
SHIFTED = ColorMatrix.between("bt601", "bt2020", made_full_range=False, wanted_full_range=True)


def convert_one(rgb: Any, matrix: ColorMatrix) -> Any:
    frames = torch.from_numpy(np.ascontiguousarray(rgb, np.uint8)).view(1, 1, 1, -1, 3)
    return convert_colors(frames, [matrix], layout="FHWC").view(-1, 3).numpy()


@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("wanted", STANDARD_NAMES)
def test_colours_inside_the_gamut_come_out_within_one_level(wanted: Any, full: bool) -> None:
    ycbcr = np.random.default_rng(3).integers(0, 256, (100_000, 3)).astype(np.float64)
    made, right = to_rgb(ycbcr, "bt601", full), to_rgb(ycbcr, wanted, full)
    inside = ((made >= 0) & (made <= 255)).all(1)  # values that BT.601 clipped are lost
    assert inside.sum() > 12_000
    got = convert_one(np.rint(made[inside]), ColorMatrix.between("bt601", wanted))
    error = np.abs(got - np.clip(np.rint(right[inside]), 0, 255))
    assert error.max() <= 1
    assert (error == 0).mean() > (0.99 if wanted == "bt601" else 0.7)


def test_a_wrong_range_is_corrected_by_the_offset() -> None:
    ycbcr = np.random.default_rng(4).integers(40, 200, (10_000, 3)).astype(np.float64)
    made, right = to_rgb(ycbcr, "bt601", False), to_rgb(ycbcr, "bt709", True)
    inside = ((made >= 0) & (made <= 255)).all(1)
    matrix = ColorMatrix.between("bt601", "bt709", made_full_range=False, wanted_full_range=True)
    assert np.abs(convert_one(np.rint(made[inside]), matrix) - np.clip(np.rint(right[inside]), 0, 255)).max() <= 1


@pytest.mark.parametrize("wanted", STANDARD_NAMES)
def test_gray_stays_gray(wanted: Any) -> None:
    gray = np.arange(256)[:, None].repeat(3, 1)
    np.testing.assert_array_equal(convert_one(gray, ColorMatrix.between("bt601", wanted)), gray)


def test_the_way_to_itself_is_nothing() -> None:
    assert all(ColorMatrix.between(name, name).is_identity for name in STANDARDS)
    assert not TO_709.is_identity
    every = np.random.default_rng(5).integers(0, 256, (5000, 3))
    np.testing.assert_array_equal(convert_one(every, IDENTITY), every)


def frames_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_the_bytes_by_255(dtype: Any) -> None:
    frames = frames_of((2, 3, 5, 7))
    levels = convert_colors(frames, [TO_709, IDENTITY])
    got = convert_colors(frames, [TO_709, IDENTITY], dtype=dtype)
    assert torch.equal(got, (levels.to(torch.float32) / 255).to(getattr(torch, dtype)))
    assert torch.equal(convert_colors(frames, [TO_709, IDENTITY], layout="FHWC").permute(0, 1, 4, 2, 3), levels)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_reference_divides_also_where_cuda_would_multiply(dtype: Any) -> None:
    """Plain PyTorch runs on GPUs where Triton does not, and must give the kernel's bits there."""
    frames = frames_of((2, 3, 5, 7))
    expected = convert_colors(frames, [TO_709, IDENTITY], dtype=dtype)
    with CudaDivision():
        assert torch.equal(convert_colors(frames, [TO_709, IDENTITY], dtype=dtype), expected)


def test_wrong_arguments_are_named() -> None:
    frames = frames_of((2, 1, 4, 4))
    with pytest.raises(ValueError, match="contiguous uint8"):
        convert_colors(frames.to(torch.float32), [IDENTITY] * 2)
    with pytest.raises(ValueError, match="contiguous uint8"):
        convert_colors(frames.transpose(2, 3), [IDENTITY] * 2)
    with pytest.raises(ValueError, match="one matrix per clip"):
        convert_colors(frames, [IDENTITY])
    with pytest.raises(ValueError, match="layout one of"):
        convert_colors(frames, [IDENTITY] * 2, layout="CHW")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a 3 x 4 matrix"):
        ColorMatrix(((1, 0, 0, 0),))
    with pytest.raises(ValueError, match="exact in float32"):
        ColorMatrix(((1 << 20, 0, 0, 0),) * 3)
