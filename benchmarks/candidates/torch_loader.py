"""torch's DataLoader over a map-style dataset, with Pillow or PyAV in worker processes.

Options: workers; decode ("torchvision" for its fast path in place of Pillow).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.candidates.clips import bare_pyav
from benchmarks.candidates.fast_path import make_decode
from benchmarks.candidates.files import frames_in, locate_media
from benchmarks.candidates.outputs import (
    CLIPS,
    CROP_PIXELS,
    FRAMES_PER_CLIP,
    MEAN,
    STD,
    VIDEO_OUTPUTS,
    Range,
    collate,
    crop_ranges,
    frame_numbers,
)
from benchmarks.candidates.stream import Delivered, measure_stream
from benchmarks.candidates.task import Task


def measure(task: Task) -> dict[str, float]:
    return measure_stream(open_stream, task)


class Files(Dataset[tuple[str, torch.Tensor]]):
    """The media of a dataset by number, read from the shards on demand."""

    def __init__(self, task: Task) -> None:
        self._output = task.output
        self._places = locate_media(task)
        self._frames = frames_in(task) if task.output in VIDEO_OUTPUTS else {}
        ranges = crop_ranges(task)
        self._decode = (
            make_decode(task)
            if task.options.get("decode") == "torchvision"
            else lambda data: _decode_image(data, task.output, ranges)
        )

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> tuple[str, torch.Tensor]:
        shard, offset, size, key = self._places[number]
        file = os.open(shard, os.O_RDONLY)
        try:
            data = os.pread(file, size, offset)
        finally:
            os.close(file)
        if self._output in VIDEO_OUTPUTS:
            return key, _decode_clips(data, self._frames[key], self._output)
        return key, self._decode(data)


class Endless(Sampler[int]):
    """Numbers in random order, epoch after epoch, so that no worker waits at the end of an epoch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(0)
        while True:
            yield from rng.permutation(self._count).tolist()


class Collate:
    """Makes a batch in the worker."""

    def __init__(self, output: str) -> None:
        self._output = output

    def __call__(self, samples: list[tuple[str, torch.Tensor]]) -> tuple[list[str], Any]:
        keys, images = zip(*samples, strict=True)
        return list(keys), collate(images, self._output)


def open_stream(task: Task, with_keys: bool) -> Iterator[Delivered]:
    """Yields batches, in page-locked memory if they go to a GPU."""
    files = Files(task)
    workers = int(task.options.get("workers", 2))
    loader: DataLoader[Any] = DataLoader(
        files,
        batch_size=task.batch_size,
        sampler=Endless(len(files)),
        num_workers=workers,
        collate_fn=Collate(task.output),
        pin_memory=task.device == "gpu",
        worker_init_fn=_one_thread,
    )
    for keys, images in loader:
        yield Delivered(images, keys if with_keys else None)


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def _decode_image(data: bytes, output: str, ranges: tuple[Range, Range]) -> torch.Tensor:
    import io

    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    if output == "float224":
        return _augment(image, ranges)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _augment(image: Image.Image, ranges: tuple[Range, Range]) -> torch.Tensor:
    """Returns a random resized crop, flipped or not, normalised: resampling reads only the box."""
    rng = np.random.default_rng(int(torch.randint(2**31, ()).item()))
    box = random_box(rng, image.width, image.height, *ranges)
    image = image.resize((CROP_PIXELS, CROP_PIXELS), Image.Resampling.BILINEAR, box=box)
    pixels = np.asarray(image)[:, :: -1 if rng.random() < 0.5 else 1]
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float().div_(255)
    return scaled.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


def random_box(
    rng: np.random.Generator, width: int, height: int, area: Range, ratio: Range
) -> tuple[int, int, int, int]:
    """Returns (left, top, right, bottom) of a random resized crop, as torchvision draws it.

    Args:
        rng: Source of every choice.
        width: Of the image.
        height: Of the image.
        area: Range of the share of the image.
        ratio: Range of width divided by height, around 1.
    """
    for _ in range(10):
        pixels = width * height * rng.uniform(*area)
        aspect = np.exp(rng.uniform(*np.log(ratio)))
        w, h = round((pixels * aspect) ** 0.5), round((pixels / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _decode_clips(data: bytes, frames: int, output: str) -> torch.Tensor:
    """Returns uint8[2, 16, 3, H, W]: as a careful user would decode them with PyAV, by seeking."""
    numbers = frame_numbers(frames)
    ranges = [
        (numbers[first], numbers[first + FRAMES_PER_CLIP - 1]) for first in range(0, len(numbers), FRAMES_PER_CLIP)
    ]
    size = CROP_PIXELS if output == "frames224" else None
    clips = torch.from_numpy(np.stack(bare_pyav(1, size)(data, ranges)))
    assert len(clips) == CLIPS
    return clips.permute(0, 1, 4, 2, 3).contiguous()
