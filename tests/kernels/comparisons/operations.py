"""Compares the operations as users call them, once with the kernel and once with the reference.

`check_triton` runs it. Without a GPU the choice of the kernel is made up, so that what leads to it is run too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from energon_dali.kernels.color_matrix import ColorMatrix, convert_colors
from energon_dali.kernels.color_quantize import Palette, color_quantize
from energon_dali.kernels.merge_patches import merge_patches
from energon_dali.kernels.normalization import Normalization, values_on
from energon_dali.kernels.pack_tokens import pack_tokens
from energon_dali.kernels.pad_stack import pad_stack
from energon_dali.kernels.patchify import patchify

from tests.kernels.ragged import images_of

NUMBERS = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPERATIONS = ("color_matrix", "color_quantize", "merge_patches", "pack_tokens", "pad_stack", "patchify")


def calls_of(device: str) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Yields (what it is, a call that returns tensors and plain values)."""
    images = images_of([(5, 3), (20, 70)], 3, device)
    clips = torch.stack([images[1], images[1].flip(0)])[None].contiguous()
    matrix = ColorMatrix.between("bt601", "bt709")
    palette = Palette.from_levels([[0, 0, 0], [255, 0, 0], [90, 120, 200]])
    sequences = [torch.arange(length, device=device) for length in (3, 0, 9)]
    for dtype in ("uint8", "float32", "bfloat16"):
        options: dict[str, Any] = {"dtype": dtype, "normalization": None if dtype == "uint8" else NUMBERS}
        yield f"pad_stack {dtype}", lambda options=options: [pad_stack(images, flips=[True, False], **options)]  # type: ignore[misc]

        def cut(options: dict[str, Any] = options) -> list[Any]:
            made = patchify(images, 4, frames_per_patch=2, **options)
            return [made.tokens, made.positions, made.cu_seqlens, made.max_seqlen, made.grids]

        yield f"patchify {dtype}", cut
        values = None if dtype == "uint8" else values_on(images[0].device, dtype, NUMBERS, 3)
        planes = clips.permute(0, 1, 4, 2, 3)[..., :16, :64]
        yield (
            f"merge_patches {dtype}",
            lambda values=values, planes=planes: [  # type: ignore[misc]
                merge_patches(planes, (4, 8), merge_size=2, frames_per_patch=2, values=values)
            ],
        )
        yield f"convert_colors {dtype}", lambda dtype=dtype: [convert_colors(clips, [matrix], dtype=dtype)]  # type: ignore[misc]
    yield "color_quantize", lambda: [color_quantize(clips, palette, dtype="int16")]

    def pack() -> list[Any]:
        made = pack_tokens(sequences, 10, padding=-1)
        return [made.tokens, made.position_ids, made.cu_seqlens, made.max_seqlen, made.places]

    yield "pack_tokens", pack


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Has the operations run on one backend, whatever the device."""
    with contextlib.ExitStack() as stack:
        for operation in OPERATIONS:
            place = f"energon_dali.kernels.{operation}.backend_for"
            stack.enter_context(mock.patch(place, return_value=name))
        if not torch.cuda.is_available():
            stack.enter_context(mock.patch("torch.cuda.device", return_value=contextlib.nullcontext()))
        yield


def compare(device: str) -> int:
    """Returns the number of comparisons.

    Raises:
        AssertionError: Something differs.
    """
    count = 0
    for name, call in calls_of(device):
        with backend("reference"):
            wanted = call()
        with backend("triton"):
            got = call()
        for ours, theirs in zip(got, wanted, strict=True):
            same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
            assert same, name
            count += 1
    return count
