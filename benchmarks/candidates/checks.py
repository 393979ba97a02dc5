"""Compares the samples of a candidate with the facts of the dataset, before its speed is measured."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from benchmarks.candidates.files import read_media
from benchmarks.candidates.outputs import (
    CLIPS,
    CROP_PIXELS,
    FRAMES_PER_CLIP,
    FRAMES_PER_PATCH,
    MEAN,
    PATCH_PIXELS,
    STD,
    VIDEO_OUTPUTS,
)
from benchmarks.candidates.task import Task

if TYPE_CHECKING:
    from benchmarks.candidates.stream import Delivered

CHECKED_SAMPLES = 128
CHECKED_VIDEOS = 4
_GPU_LEVELS = 1.0
"""Tolerance of the mean of an image decoded on a GPU, in levels, compared with the CPU."""
_CROP_LEVELS = 2.0
"""Tolerance of a crop of 224 pixels compared with PIL's, on average over its pixels: bilinear filters differ."""
_VIDEO_LEVELS = 8.0
"""Tolerance of clips compared with PyAV, on average: matrices and filters differ, and so may frames by one."""


class WrongOutputError(Exception):
    """A candidate does not deliver what the workload requires, so its speed means nothing."""


def check(batches: Iterator[Delivered], task: Task) -> int:
    """Returns how many samples were compared with the facts of the dataset.

    Raises:
        WrongOutputError: A key is unknown, or a shape, dtype or sum of pixels is not what the facts say.
    """
    facts = json.loads((Path(task.dataset) / "facts.json").read_text())
    by_output: dict[str, Callable[[Task, str, Any, list[int]], float]] = {
        "uint8": _check_uint8,
        "float224": _check_float224,
        "patches": _check_patches,
        "frames": _check_frames,
        "frames224": _check_frames,
        "frame-patches": _check_frame_patches,
    }
    if task.output == "vision":
        return check_vision(batches, task)
    one = by_output[task.output]
    checked = 0
    brightness = expected_brightness = 0.0
    for batch in batches:
        keys = batch.keys or []
        images = _per_sample(batch.images, task)
        if len(keys) != len(images):
            raise WrongOutputError(f"{task.program}: {len(keys)} keys for {len(images)} images.")
        for key, image in zip(keys, images, strict=True):
            if key not in facts:
                raise WrongOutputError(f"{task.program}: no sample of the dataset has the key {key!r}.")
            height, width, total = facts[key]
            value = one(task, key, image, facts[key])
            checked += 1
            if task.output not in VIDEO_OUTPUTS:
                brightness += value
                expected_brightness += total / (height * width * 3)
        if checked >= (CHECKED_VIDEOS if task.output in VIDEO_OUTPUTS else CHECKED_SAMPLES):
            break
    # Crops show different parts of an image, so only the means of many agree.
    if abs(brightness - expected_brightness) / checked > (20 if task.output == "float224" else _GPU_LEVELS):
        raise WrongOutputError(
            f"{task.program}: pixels have the mean {brightness / checked:.1f}, those in the files "
            f"{expected_brightness / checked:.1f}."
        )
    return checked


def check_vision(batches: Iterator[Delivered], task: Task) -> int:
    """Returns how many images were compared with what the processor of the PIL backend makes, on their average.

    The first candidate that is checked is that processor; it writes the averages next to the shards.

    Raises:
        WrongOutputError: An image has another number of rows, another shape, or another average.
    """
    path = Path(task.dataset) / f"vision-{task.options['model']}.json"
    # On a GPU host there is no processor: the first candidate that is checked stands in for it.
    is_reference = task.options.get("backend") == "pil" or (task.seconds > 0 and not path.exists())
    known: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    checked = 0
    for batch in batches:
        assert isinstance(batch.images, dict)
        assert batch.keys is not None
        pixels = _normalised(batch.images["pixel_values"].cpu(), task)
        rows = batch.images["rows"]
        # LLaVA-NeXT pads the tiles of a batch to one number.
        pieces = (
            [one[:count] for one, count in zip(pixels, rows, strict=True)]
            if pixels.ndim == 5
            else torch.split(pixels, rows)
        )
        for key, piece in zip(batch.keys, pieces, strict=True):
            found = [len(piece), piece[0].numel(), float(piece.mean()), float(piece.std())]
            expected = known.setdefault(key, found) if is_reference else known.get(key)
            if expected is None:
                raise WrongOutputError(f"{key}: check the processor of the PIL backend first.")
            if found[:2] != expected[:2] or any(abs(a - b) > 0.02 for a, b in zip(found, expected, strict=True)):
                raise WrongOutputError(f"{key}: rows, values, mean and deviation are {found}, not {expected}.")
            checked += 1
        if checked >= (len(json.loads((Path(task.dataset) / "facts.json").read_text())) if is_reference else 64):
            break
    if is_reference:
        path.write_text(json.dumps(known))
    return checked


def _normalised(pixels: torch.Tensor, task: Task) -> torch.Tensor:
    if pixels.dtype != torch.uint8:
        return pixels.float()
    from benchmarks.candidates.vision import front_end  # bytes: the model normalises

    scale, shift = front_end(task).normalization()
    values = pixels.float()
    if values.ndim == 2:  # patches: [N, 3 * frames * side * side]
        grouped = values.view(len(values), 3, -1)
        return (grouped * torch.tensor(scale).view(1, 3, 1) + torch.tensor(shift).view(1, 3, 1)).view_as(values)
    return values * torch.tensor(scale).view(3, 1, 1) + torch.tensor(shift).view(3, 1, 1)


def _per_sample(images: Any, task: Task) -> Any:
    """Returns one value per sample; packed tokens are divided by `cu_seqlens`."""
    if not isinstance(images, dict):
        return images
    ends = images["cu_seqlens"].tolist()
    pieces = [images["tokens"][first:last] for first, last in itertools.pairwise(ends)]
    if task.output == "patches":
        return pieces
    return [pieces[first : first + CLIPS] for first in range(0, len(pieces), CLIPS)]


def _check_uint8(task: Task, key: str, image: torch.Tensor, fact: list[int]) -> float:
    height, width, _ = fact
    shape = (height, width, 3) if task.layout == "HWC" else (3, height, width)
    _expect(task, key, image, torch.uint8, shape)
    found = int(image.sum(dtype=torch.int64))
    levels = float(task.options.get("levels", 0))
    _compare_sums(task, key, found, fact, levels)
    if levels:  # without it, all pixels are PIL's
        pixels = image if task.layout == "CHW" else image.permute(2, 0, 1)
        _compare_with_pil(task, key, [pixels], _open(task, key), levels)
    return found / (height * width * 3)


def _compare_with_pil(task: Task, key: str, found: list[torch.Tensor], expected: Image.Image, levels: float) -> None:
    """Compares the pixels of an image with PIL's.

    Args:
        task: The task.
        key: Of the sample.
        found: Float or uint8[3, H, W]; several if one of them has to be right.
        expected: What PIL makes.
        levels: Tolerance of the mean difference of a value, in 1/255.

    Raises:
        WrongOutputError: They differ by more.
    """
    wanted = torch.from_numpy(np.array(expected)).permute(2, 0, 1).float()
    difference = min(float((pixels.cpu().float() - wanted).abs().mean()) for pixels in found)
    if difference > levels:
        raise WrongOutputError(f"{task.program}: the pixels of {key} differ from PIL's by {difference:.2f} on average.")


def _open(task: Task, key: str) -> Image.Image:
    with Image.open(io.BytesIO(_media(task.dataset)[key])) as opened:
        image: Image.Image = opened.convert("RGB")
    return image


def _central_crop(image: Image.Image) -> Image.Image:
    """Returns what every random resized crop is with the ranges of a check."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.resize((CROP_PIXELS, CROP_PIXELS), Image.Resampling.BILINEAR, box=box)


def _compare_sums(task: Task, key: str, found: float, fact: list[int], levels: float = 0.0) -> None:
    """`levels` is the tolerance of the mean on the CPU."""
    height, width, total = fact
    allowed = (_GPU_LEVELS if task.decodes_on == "gpu" else levels) * height * width * 3
    if abs(found - total) > allowed:
        raise WrongOutputError(f"{task.program}: the pixels of {key} sum to {found}, not to {total}.")


def _check_float224(task: Task, key: str, image: torch.Tensor, fact: list[int]) -> float:
    _expect(task, key, image, torch.float32, (3, CROP_PIXELS, CROP_PIXELS))
    pixels = image.cpu() * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    if not bool(torch.isfinite(pixels).all()) or float(pixels.min()) < -0.01 or float(pixels.max()) > 1.01:
        raise WrongOutputError(f"{task.program}: {key} is not a normalised image.")
    # Bare DALI puts the largest square anywhere, so that only the brightness of its crops is compared.
    if task.action == "check" and task.program not in ("dali_native", "ceiling"):
        levels = float(task.options.get("levels", _CROP_LEVELS))
        either = [255 * pixels, 255 * pixels.flip(2)]  # it may be mirrored
        _compare_with_pil(task, key, either, _central_crop(_open(task, key)), levels)
    return float(pixels.mean()) * 255


def _check_patches(task: Task, key: str, tokens: torch.Tensor, fact: list[int]) -> float:
    height, width, _ = fact
    count = -(-height // PATCH_PIXELS) * -(-width // PATCH_PIXELS)
    _expect(task, key, tokens, torch.bfloat16, (count, 3 * PATCH_PIXELS**2))
    # Padding is zero, so the sum is that of the pixels of the image.
    sums = tokens.cpu().double().view(count, 3, -1).sum((0, 2))
    found = sum(255 * (float(sums[c]) * STD[c] + MEAN[c] * height * width) for c in range(3))
    _compare_sums(task, key, found, fact, levels=0.2)  # bfloat16 has 8 bits
    return found / (height * width * 3)


def _check_frames(task: Task, key: str, clips: torch.Tensor, fact: list[int]) -> float:
    height, width, _ = fact
    size = (CROP_PIXELS, CROP_PIXELS) if task.output == "frames224" else (height, width)
    _expect(task, key, clips, torch.uint8, (CLIPS, FRAMES_PER_CLIP, 3, *size))
    _compare_frames(task, key, clips[0].cpu().float(), size)
    return 0.0


def _check_frame_patches(task: Task, key: str, clips: list[torch.Tensor], fact: list[int]) -> float:
    rows, columns = -(-fact[0] // PATCH_PIXELS), -(-fact[1] // PATCH_PIXELS)
    times = FRAMES_PER_CLIP // FRAMES_PER_PATCH
    shape = (times * rows * columns, 3 * FRAMES_PER_PATCH * PATCH_PIXELS**2)
    for tokens in clips:
        _expect(task, key, tokens, torch.bfloat16, shape)
    whole = clips[0].cpu().float().view(times, rows, columns, 3, FRAMES_PER_PATCH, PATCH_PIXELS, PATCH_PIXELS)
    frames = whole.permute(0, 4, 3, 1, 5, 2, 6).reshape(FRAMES_PER_CLIP, 3, rows * PATCH_PIXELS, columns * PATCH_PIXELS)
    frames = frames * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    _compare_frames(task, key, 255 * frames[..., : fact[0], : fact[1]], (fact[0], fact[1]))
    return 0.0


def _compare_frames(task: Task, key: str, frames: torch.Tensor, size: tuple[int, int]) -> None:
    difference = float((frames - _first_clip(task.dataset, key, size)).abs().mean())
    if difference > _VIDEO_LEVELS:
        raise WrongOutputError(f"{task.program}: the first clip of {key} differs by {difference:.1f} on average.")


@functools.cache
def _first_clip(dataset: str, key: str, size: tuple[int, int]) -> torch.Tensor:
    """Returns the first frames of a video as PyAV decodes them, float32[16, 3, H, W] in levels."""
    import av

    data = _media(dataset)[key]
    frames = []
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            frames.append(torch.from_numpy(frame.to_ndarray(format="rgb24", width=size[1], height=size[0])))
            if len(frames) == FRAMES_PER_CLIP:
                break
    return torch.stack(frames).permute(0, 3, 1, 2).float()


@functools.cache
def _media(dataset: str) -> dict[str, bytes]:
    task = Task(program="", action="", dataset=dataset, output="", batch_size=1, warmup_samples=0, samples=0)
    return dict(read_media(task))


def _expect(task: Task, key: str, image: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(image, torch.Tensor) or image.dtype != dtype or tuple(image.shape) != shape:
        found = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise WrongOutputError(f"{task.program}: {key} is {found}, not a tensor of {dtype} {shape}.")
    if task.device == "gpu" and not image.is_cuda:
        raise WrongOutputError(f"{task.program}: {key} is on the CPU, not on the GPU.")
