"""The outputs of candidates, shared so that all of them deliver the same.

"uint8": images at their size. "float224": random resized crops, flipped, normalised, stacked. "patches": bfloat16
tokens of 16 x 16 pixels, packed. "frames", "frames224", "frame-patches": the same of clips, without crops and flips.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.candidates.task import Task

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP_PIXELS = 224
PATCH_PIXELS = 16
FRAMES_PER_PATCH = 2

Range = tuple[float, float]
CROP_AREA: Range = (0.08, 1.0)
"""Share of the image that a random resized crop shows."""
CROP_RATIO: Range = (3 / 4, 4 / 3)
"""Its width divided by its height."""

CLIPS = 2
"""Clips per video, evenly spaced: the first starts with it, the last ends with it."""
FRAMES_PER_CLIP = 16
VIDEO_OUTPUTS = ("frames", "frames224", "frame-patches")


def collate(
    images: Sequence[torch.Tensor], output: str, stack: Callable[[list[torch.Tensor]], torch.Tensor] = torch.stack
) -> Any:
    """Returns a batch of decoded data, which may be a view.

    Args:
        images: One per sample: uint8[3, H, W], float32[3, 224, 224], or clips uint8[2, 16, 3, H, W].
        output: Of the workload.
        stack: Stacks tensors of one shape.
    """
    if output == "uint8":
        return list(images)
    if output in ("patches", "frame-patches"):
        return make_patches(images)
    return stack(list(images))


def crop_ranges(task: Task) -> tuple[Range, Range]:
    """Returns the ranges of area and aspect ratio of a random resized crop.

    A check needs the same pixels of every candidate. With these ranges no box fits into an image that is not a square,
    for which libraries take the largest central square.
    """
    return ((1.0, 1.0), (1.0, 1.0)) if task.action == "check" else (CROP_AREA, CROP_RATIO)


def make_patches(images: Sequence[torch.Tensor], layout: str = "CHW") -> dict[str, Any]:
    """Returns tokens bfloat16[S, 3 * T * 16 * 16], positions int32[S, 3], cu_seqlens int32[n + 1].

    Args:
        images: uint8 images, or sets of clips with two axes more.
        layout: Of the images or frames: "CHW" or "HWC".
    """
    video = images[0].ndim == 5
    views = [clip for clips in images for clip in clips] if video else list(images)
    patchify, normalization = _kernel()
    made = patchify(
        views,
        PATCH_PIXELS,
        frames_per_patch=FRAMES_PER_PATCH if video else 1,
        dtype="bfloat16",
        normalization=normalization,
        input_layout=layout,
    )
    return {"tokens": made.tokens, "positions": made.positions, "cu_seqlens": made.cu_seqlens}


def _kernel() -> tuple[Any, Any]:
    """Returns patchify and the normalisation. Without an installed energon_dali they are imported from the checkout."""
    try:
        module = importlib.import_module("energon_dali.kernels.patchify")
    except ImportError:
        module = importlib.import_module("kernels.patchify")
    return module.patchify, module.Normalization(mean=MEAN, std=STD)


def count_samples(images: Any) -> int:
    """Returns the number of samples of a batch of images, or of videos of a batch of clip patches."""
    if not isinstance(images, dict):
        return len(images)
    if "rows" in images:
        return len(images["rows"])
    pieces = len(images["cu_seqlens"]) - 1
    return pieces // CLIPS if images["tokens"].shape[1] > 3 * PATCH_PIXELS**2 else pieces


def frame_numbers(frames: int) -> list[int]:
    """Returns the numbers of the frames of all clips of a video with this number of frames, clip by clip."""
    last_start = max(0, frames - FRAMES_PER_CLIP)
    starts = [round(last_start * clip / (CLIPS - 1)) for clip in range(CLIPS)]
    return [start + place for start in starts for place in range(FRAMES_PER_CLIP)]


def on_device(value: Any, device: str) -> Any:
    """Returns a batch on the device: CPU tensors are copied to a GPU on its current CUDA stream.

    Args:
        value: Tensors in lists and dicts, or what a GPU pipeline made.
        device: "cpu" or "gpu".
    """
    if device == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return value if value.is_cuda else value.to("cuda", non_blocking=True)
    if isinstance(value, dict):
        return {name: on_device(one, device) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_device(one, device) for one in value]
    return value


def synchronize(device: str) -> None:
    """Waits until a GPU has finished all work."""
    if device == "gpu":
        torch.cuda.synchronize()
