"""Patches of ragged images and clips: compared with convolutions and with a loop over patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from energon_dali.kernels.normalization import Normalization
from energon_dali.kernels.patchify import Grid, patchify

from tests.kernels.ragged import SIZES, images_of

IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def patches_one_by_one(clip: Any, patch_size: int, times: int) -> Any:
    """Yields (time, row, column) and uint8[C, T, P, P] of each patch of uint8[F, H, W, C], in order."""
    frames, height, width, channels = clip.shape
    for time in range(0, frames, times):
        for top in range(0, height, patch_size):
            for left in range(0, width, patch_size):
                patch = torch.zeros((channels, times, patch_size, patch_size), dtype=torch.uint8)
                for step in range(times):
                    part = clip[min(time + step, frames - 1), top : top + patch_size, left : left + patch_size]
                    patch[:, step, : part.shape[0], : part.shape[1]] = part.permute(2, 0, 1)
                yield [time // times, top // patch_size, left // patch_size], patch


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("patch_size", "times"), [(1, 1), (14, 1), (5, 2), (7, 3)])
def test_every_patch_of_every_clip_has_its_place(sizes: Any, patch_size: int, times: int) -> None:
    clips = images_of(sizes, 3, frames=1)
    got = patchify(clips, patch_size, frames_per_patch=times, dtype="uint8")
    wanted = [list(patches_one_by_one(clip, patch_size, times)) for clip in clips]
    flat = [patch for patches in wanted for patch in patches]
    assert got.positions.tolist() == [position for position, _ in flat]
    assert [row.tolist() for row in got.tokens] == [patch.flatten().tolist() for _, patch in flat]
    assert got.cu_seqlens.diff().tolist() == [len(patches) for patches in wanted] == [g.tokens for g in got.grids]
    assert got.max_seqlen == max(map(len, wanted))
    assert got.cu_seqlens[0] == 0
    assert (got.cu_seqlens.dtype, got.positions.dtype) == (torch.int32, torch.int32)
    planes = [clip.movedim(-1, -3).contiguous() for clip in clips]
    assert torch.equal(
        patchify(planes, patch_size, frames_per_patch=times, dtype="uint8", input_layout="CHW").tokens, got.tokens
    )


def test_tokens_are_in_the_order_of_the_weights_of_convolutions() -> None:
    generator = torch.Generator().manual_seed(1)
    for frames, times in ((0, 1), (6, 2)):
        image = images_of([(15, 25)], 3, frames=frames)[0]
        weight = torch.randn((8, 3, times, 5, 5), generator=generator, dtype=torch.float64)
        tokens = patchify([image], 5, frames_per_patch=times, dtype="float32", normalization=IMAGENET).tokens
        clip = (image if frames else image[None]).to(torch.float64).permute(3, 0, 1, 2)[None] / 255
        mean, std = (torch.tensor(numbers).view(1, 3, 1, 1, 1) for numbers in (IMAGENET.mean, IMAGENET.std))
        wanted = F.conv3d((clip - mean) / std, weight, stride=(times, 5, 5))[0].flatten(1).T
        torch.testing.assert_close(tokens.to(torch.float64) @ weight.flatten(1).T, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_beyond_the_edge_is_zero_after_normalisation(dtype: Any) -> None:
    image = torch.full((3, 4, 3), 7, dtype=torch.uint8)
    patch = patchify([image], 5, dtype=dtype, normalization=IMAGENET).tokens.view(3, 5, 5)
    assert (patch[:, :3, :4] != 0).all()
    assert (patch[:, 3:] == 0).all()
    assert (patch[:, :, 4:] == 0).all()
    assert patch.dtype == getattr(torch, dtype)


def test_an_image_is_a_clip_of_one_frame() -> None:
    image = images_of([(9, 13)], 3)[0]
    got = patchify([image], 4, frames_per_patch=2)
    assert torch.equal(got.tokens, patchify([torch.stack([image, image])], 4, frames_per_patch=2).tokens)
    assert got.grids == (Grid(1, 3, 4),)
    assert "tokens=(12, 96) torch.float32 on cpu" in repr(got)


def test_wrong_arguments_are_named() -> None:
    image = images_of([(4, 5)], 3)[0]
    cases: list[tuple[Any, int, dict[str, Any], str]] = [
        ([], 4, {}, "No images were given"),
        ([image, image[None]], 4, {}, "same device, rank"),
        ([image], 0, {}, "at least one pixel"),
        ([image], 4, {"frames_per_patch": 0}, "one frame"),
        ([image], 4, {"dtype": "uint8", "normalization": IMAGENET}, "ask for a floating dtype"),
        ([image[:0]] * 65536, 4, {}, "65536 images with 0 tokens: at most 65535"),
    ]
    for images, patch_size, options, message in cases:
        with pytest.raises(ValueError, match=message):
            patchify(images, patch_size, **options)
