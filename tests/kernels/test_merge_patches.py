"""Patches in the order in which a model merges them: compared with a loop over patches, and with tables of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from energon_dali.kernels.merge_patches import merge_patches
from energon_dali.kernels.normalization import Normalization, values_of_levels


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(6), dtype=torch.uint8)


def patches_one_by_one(frames: torch.Tensor, patch: tuple[int, int], merge: int, times: int) -> list[torch.Tensor]:
    """Returns uint8[C, times, height * width] of each patch, cut in the plainest way."""
    made = []
    rows, columns = frames.shape[-2] // patch[0], frames.shape[-1] // patch[1]
    for image in frames:
        for first in range(0, len(image), times):
            shown = [image[min(first + step, len(image) - 1)] for step in range(times)]
            for block_row in range(0, rows, merge):
                for block_column in range(0, columns, merge):
                    for row in range(block_row, block_row + merge):
                        for column in range(block_column, block_column + merge):
                            y, x = row * patch[0], column * patch[1]
                            cut = [frame[:, y : y + patch[0], x : x + patch[1]].flatten(1) for frame in shown]
                            made.append(torch.stack(cut, 1))
    return made


@pytest.mark.parametrize(
    ("shape", "patch", "merge", "times"),
    [
        ((1, 1, 3, 4, 6), (2, 3), 1, 1),
        ((2, 1, 3, 12, 8), (3, 2), 2, 2),
        ((1, 5, 3, 8, 8), (2, 2), 2, 2),
        ((2, 4, 1, 6, 6), (2, 2), 3, 3),
        ((0, 1, 3, 4, 4), (2, 2), 1, 1),
    ],
    ids=str,
)
def test_patches_are_in_the_order_of_merging(shape: Any, patch: Any, merge: int, times: int) -> None:
    frames = noise(*shape)
    found = merge_patches(frames, patch, merge_size=merge, frames_per_patch=times)
    expected = patches_one_by_one(frames, patch, merge, times)
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    assert len(expected) == found.flatten(0, 2).shape[0]
    assert all(map(torch.equal, found.flatten(0, 2), expected))
    last = merge_patches(frames, patch, merge_size=merge, frames_per_patch=times, channels_last=True)
    assert torch.equal(last, found.permute(0, 1, 2, 4, 5, 3))
    other = frames.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)  # as decoders give them
    assert torch.equal(merge_patches(other, patch, merge_size=merge, frames_per_patch=times), found)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_looked_up_by_channel(dtype: torch.dtype, channels_last: bool) -> None:
    numbers = Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)).coefficients(3)
    values, frames = values_of_levels(numbers, dtype), noise(2, 3, 3, 4, 4)
    options: Any = {"merge_size": 2, "frames_per_patch": 2, "channels_last": channels_last}
    cut = merge_patches(frames, (2, 2), **options)
    found = merge_patches(frames, (2, 2), values=values, **options)
    assert found.dtype == dtype
    for channel in range(3):
        axis = 5 if channels_last else 3
        assert torch.equal(found.select(axis, channel), values[channel][cut.select(axis, channel).long()])


def test_patches_are_written_where_the_caller_wants_them() -> None:
    frames, out = noise(2, 1, 3, 4, 4), torch.zeros(9, 24, dtype=torch.uint8)
    made = merge_patches(frames, (2, 2), out=out[:4])
    assert made.data_ptr() == out.data_ptr()
    assert torch.equal(made, merge_patches(frames, (2, 2)))
    assert not out[4:].any()


def test_wrong_arguments_are_named() -> None:
    frames = noise(1, 1, 3, 4, 4)
    with pytest.raises(ValueError, match="out must be contiguous"):
        merge_patches(frames, (2, 2), out=torch.zeros(4, 12))
    with pytest.raises(ValueError, match=r"must be uint8\[n, frames, C, H, W\]"):
        merge_patches(frames[0], (2, 2))
    with pytest.raises(ValueError, match=r"must be uint8\[n, frames, C, H, W\]"):
        merge_patches(frames.float(), (2, 2))
    with pytest.raises(ValueError, match="multiples of a block"):
        merge_patches(frames, (2, 2), merge_size=4)
    with pytest.raises(ValueError, match="at least 1"):
        merge_patches(frames, (0, 2))
    with pytest.raises(ValueError, match=r"contiguous dtype\[3, 256\]"):
        merge_patches(frames, (2, 2), values=torch.zeros(1, 256))
